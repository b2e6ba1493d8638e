#include "model/chat/chat_family.h"

#include <optional>

namespace riffle {
namespace {

constexpr const char* kHeaders = "<|start_header_id|> <|end_header_id|> <|eot_id|>";
constexpr const char* kTurns = "<|im_start|> <|im_end|>";
constexpr const char* kInst = "[INST] [/INST]";
constexpr const char* kVicunaSystem =
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, "
    "and polite answers to the user's questions.";

using F = ChatFamily;

// Sources: the chat templates on the models' pages at Hugging Face; for Vicuna and LongChat, which
// carry none, FastChat's conversation "vicuna_v1.1"; for LWM the prompt of its evaluation scripts.
constexpr ChatFamily kFamilies[] = {
    {.name = "llama3",
     .what = "Llama 3 Instruct",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>", true},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", true},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", true},
     .trim_together = false,
     .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .required = kHeaders,
     .markers = "",
     .turn_end = "<|eot_id|>"},
    // The date is the one that the template falls back to, so that the same prompt is the same on
    // every day.
    {.name = "llama3.1",
     .what = "Llama 3.1, 3.2, 3.3 Instruct",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = "",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
                "2023\nToday Date: 26 "
                "Jul 2024\n\n",
                "<|eot_id|>", true},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>", true},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", true},
     .trim_together = false,
     .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .required = kHeaders,
     .markers = "",
     .turn_end = "<|eot_id|>"},
    {.name = "llama2",
     .what = "Llama 2 Chat, CodeLlama Instruct",
     .bos_first = false,
     .system_place = F::FIRST_USER,
     .default_system = nullptr,
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .user = {"{bos}[INST] ", " [/INST]"},
     .assistant = {" ", " {eos}", true},
     .trim_together = true,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "inst",
     .what = "riffle's own model",
     .bos_first = false,
     .system_place = F::NONE,
     .default_system = nullptr,
     .system = {"", ""},
     .user = {"{bos}[INST] ", " [/INST]"},
     .assistant = {" ", "{eos}"},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "mistral-v0.1",
     .what = "Mistral Instruct v0.1, as published first",
     .bos_first = true,
     .system_place = F::NONE,
     .default_system = nullptr,
     .system = {"", ""},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", "{eos} "},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "mistral-v0.2",
     .what = "Mistral Instruct v0.2 and v0.3, as published first",
     .bos_first = true,
     .system_place = F::NONE,
     .default_system = nullptr,
     .system = {"", ""},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", "{eos}"},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "mistral",
     .what = "Mistral Instruct v0.1 and v0.2, as revised",
     .bos_first = true,
     .system_place = F::FIRST_USER,
     .default_system = nullptr,
     .system = {"", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", "{eos}"},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "mistral-v0.3",
     .what = "Mistral Instruct v0.3, as revised",
     .bos_first = true,
     .system_place = F::LAST_USER,
     .default_system = nullptr,
     .system = {"", "\n\n"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "{eos}", true},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "mistral-nemo",
     .what = "Mistral Nemo Instruct",
     .bos_first = true,
     .system_place = F::LAST_USER,
     .default_system = nullptr,
     .system = {"", "\n\n"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "{eos}"},
     .trim_together = false,
     .answer = "",
     .required = "",
     .markers = kInst,
     .turn_end = ""},
    {.name = "chatml",
     .what = "ChatML: SmolLM Instruct and many others",
     .bos_first = false,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .trim_together = false,
     .answer = "<|im_start|>assistant\n",
     .required = kTurns,
     .markers = "",
     .turn_end = "<|im_end|>"},
    {.name = "qwen2",
     .what = "Qwen2 Instruct: ChatML with a default system message",
     .bos_first = false,
     .system_place = F::OWN,
     .default_system = "You are a helpful assistant.",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .trim_together = false,
     .answer = "<|im_start|>assistant\n",
     .required = kTurns,
     .markers = "",
     .turn_end = "<|im_end|>"},
    {.name = "smollm2",
     .what = "SmolLM2 Instruct: ChatML with a default system message",
     .bos_first = false,
     .system_place = F::OWN,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .trim_together = false,
     .answer = "<|im_start|>assistant\n",
     .required = kTurns,
     .markers = "",
     .turn_end = "<|im_end|>"},
    // ChatML, but a system message stands bare before the first turn.
    {.name = "yi",
     .what = "Yi-1.5 Chat",
     .bos_first = false,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"", ""},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .trim_together = false,
     .answer = "<|im_start|>assistant\n",
     .required = kTurns,
     .markers = "",
     .turn_end = "<|im_end|>"},
    {.name = "zephyr",
     .what = "Zephyr, TinyLlama Chat",
     .bos_first = false,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"<|system|>\n", "{eos}\n"},
     .user = {"<|user|>\n", "{eos}\n"},
     .assistant = {"<|assistant|>\n", "{eos}\n"},
     .trim_together = false,
     .answer = "<|assistant|>\n",
     .required = "",
     .markers = "<|system|> <|user|> <|assistant|>",
     .turn_end = ""},
    {.name = "vicuna",
     .what = "Vicuna v1.1 to v1.5, LongChat",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = kVicunaSystem,
     .system = {"", " "},
     .user = {"USER: ", " "},
     .assistant = {"ASSISTANT: ", "{eos}"},
     .trim_together = false,
     .answer = "ASSISTANT:",
     .required = "",
     .markers = "",
     .turn_end = ""},
    {.name = "lwm",
     .what = "LWM-Text-Chat: as Vicuna, another default system message",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = "You are a helpful assistant.",
     .system = {"", " "},
     .user = {"USER: ", " "},
     .assistant = {"ASSISTANT: ", "{eos}"},
     .trim_together = false,
     .answer = "ASSISTANT:",
     .required = "",
     .markers = "",
     .turn_end = ""},
    {.name = "vicuna-lines",
     .what =
         "Vicuna as later templates have it: a line for each message, no default system message",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"", "\n\n", true},
     .user = {"USER: ", "\n", true},
     .assistant = {"ASSISTANT: ", "{eos}\n", true},
     .trim_together = false,
     .answer = "ASSISTANT:",
     .required = "",
     .markers = "",
     .turn_end = ""},
    {.name = "deepseek",
     .what = "DeepSeek LLM Chat",
     .bos_first = true,
     .system_place = F::OWN,
     .default_system = nullptr,
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", "{eos}"},
     .trim_together = false,
     .answer = "Assistant:",
     .required = "",
     .markers = "",
     .turn_end = ""},
};

// Text of a table entry, its {bos} and {eos} as pieces.
void append_entry(TextPieces* out, std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t open = std::min(text.find("{bos}", pos), text.find("{eos}", pos));
    append_literal(out, text.substr(pos, open - pos));
    if (open == std::string_view::npos) return;
    append(out, {{text[open + 1] == 'b' ? TextPiece::BOS : TextPiece::EOS, "", 0, {}}});
    pos = open + 5;
  }
}

void append_framed(TextPieces* out, const ChatFrame& frame, TextPieces content) {
  append_entry(out, frame.before);
  append(out, frame.trim ? trimmed(std::move(content)) : content);
  append_entry(out, frame.after);
}

TextPieces content_of(int message) { return {{TextPiece::CONTENT, "", message, {}}}; }

// system: what the system message is, if there is one; first: the number of the first message after
// it.
TextPieces pieces_of(const ChatFormat& format, const std::optional<TextPieces>& system, int first,
                     size_t n_user) {
  const ChatFamily& family = *format.family;
  TextPieces out;
  if (format.bos_first) append_entry(&out, "{bos}");
  if (system && family.system_place == ChatFamily::OWN) append_framed(&out, family.system, *system);
  for (size_t i = 0; i < n_user; i++) {
    TextPieces content;
    const bool here = (family.system_place == ChatFamily::FIRST_USER && i == 0) ||
                      (family.system_place == ChatFamily::LAST_USER && i + 1 == n_user);
    if (system && here) append_framed(&content, family.system, *system);
    append(&content, content_of(first + static_cast<int>(2 * i)));
    append_framed(&out, family.user, family.trim_together ? trimmed(std::move(content)) : content);
    if (i + 1 < n_user)
      append_framed(&out, family.assistant, content_of(first + static_cast<int>(2 * i) + 1));
  }
  append_entry(&out, family.answer);
  return out;
}

}  // namespace

std::span<const ChatFamily> chat_families() { return kFamilies; }

ChatFormat chat_format_of(const ChatFamily& family) {
  ChatFormat format;
  format.family = &family;
  format.bos_first = family.bos_first;
  format.has_default_system = family.default_system != nullptr;
  if (family.default_system) format.default_system = family.default_system;
  return format;
}

TextPieces chat_pieces(const ChatFormat& format, bool system, size_t n_user) {
  std::optional<TextPieces> text;
  if (system) {
    text = content_of(0);
  } else if (format.has_default_system) {
    text.emplace();
    append_literal(&*text, format.default_system);
  }
  return pieces_of(format, text, system, n_user);
}

TextPieces chat_pieces_with_default(const ChatFormat& format, size_t n_user) {
  return pieces_of(format, content_of(kDefaultSystem), 0, n_user);
}

}  // namespace riffle
