#include "chat/chat_family.h"

#include <algorithm>
#include <utility>

#include "chat/python_text.h"
#include "util/error.h"

namespace riffle {
namespace {

constexpr const char* kHeaders = "<|start_header_id|> <|end_header_id|> <|eot_id|>";
constexpr const char* kTurns = "<|im_start|> <|im_end|>";
constexpr const char* kVicunaSystem =
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, "
    "and polite answers to the user's questions.";

using F = ChatFamily;

// Sources: the chat templates on the models' pages at Hugging Face; for Vicuna and LongChat, which
// have none, FastChat's conversation "vicuna_v1.1"; for LWM the prompt of its evaluation scripts.
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
     .turn_end = "<|eot_id|>"},
    // The date is the template's default, so that a prompt is the same on every day.
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
     .turn_end = "<|im_end|>"},
    // ChatML, but a system message comes without marks before the first turn.
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
     .turn_end = ""},
};

class Writer {
 public:
  Writer(const ChatFamily& family, const std::string& bos, const std::string& eos)
      : family_(family), bos_(bos), eos_(eos) {}

  SourcedText write(const std::vector<ChatMessage>& messages) {
    const bool system = messages[0].role == "system";
    SourcedText about;
    if (system) about.append(messages[0].content, 0);
    else if (family_.default_system) about.append(family_.default_system);
    const bool any = system || family_.default_system;
    // An assistant's message that comes last is continued: nothing follows it.
    const bool open = messages.back().role == "assistant";
    const size_t last_user = messages.size() - (open ? 2 : 1);
    if (family_.bos_first) entry("{bos}");
    if (any && family_.system_place == F::OWN) framed(family_.system, about);
    for (size_t i = system; i < messages.size(); i++) {
      SourcedText content(messages[i].content, static_cast<int>(i));
      if (messages[i].role == "assistant") {
        if (open && i + 1 == messages.size()) unclosed(family_.assistant, content);
        else framed(family_.assistant, content);
        continue;
      }
      const bool here = (family_.system_place == F::FIRST_USER && i == system) ||
                        (family_.system_place == F::LAST_USER && i == last_user);
      if (any && here) {
        SourcedText both = std::exchange(out_, {});
        framed(family_.system, about);
        out_.append(content);
        content = std::exchange(out_, std::move(both));
      }
      framed(family_.user, family_.trim_together ? trimmed(content) : content);
    }
    if (!open) entry(family_.answer);
    return std::move(out_);
  }

 private:
  static SourcedText trimmed(const SourcedText& text) {
    const size_t end = strip_right(text.view()).size();
    const size_t begin = end - strip_left(text.view().substr(0, end)).size();
    return text.part(begin, end);
  }

  void unclosed(const ChatFrame& frame, const SourcedText& content) {
    entry(frame.before);
    out_.append(frame.trim ? trimmed(content) : content);
  }
  void framed(const ChatFrame& frame, const SourcedText& content) {
    unclosed(frame, content);
    entry(frame.after);
  }

  // Appends the text of a table entry, with {bos} and {eos} as the vocabulary spells them.
  void entry(std::string_view text) {
    for (size_t pos = 0; pos < text.size();) {
      const size_t open = std::min(text.find("{bos}", pos), text.find("{eos}", pos));
      out_.append(text.substr(pos, open - pos));
      if (open == std::string_view::npos) return;
      const bool first = text[open + 1] == 'b';
      const std::string& token = first ? bos_ : eos_;
      if (token.empty()) {
        fail(RIFFLE_UNSUPPORTED,
             "the chat template %s needs the %s-of-sequence token, but the model has none",
             family_.name, first ? "beginning" : "end");
      }
      out_.append(token);
      pos = open + 5;
    }
  }

  const ChatFamily& family_;
  const std::string &bos_, &eos_;
  SourcedText out_;
};

void check_roles(const ChatFamily& family, const std::vector<ChatMessage>& messages) {
  const bool system = messages[0].role == "system";
  if (system && family.system_place == F::NONE) {
    fail(RIFFLE_BAD_ARGUMENT,
         "messages[0] has role 'system', but the chat template %s has no system messages",
         family.name);
  }
  if (messages.size() == size_t{system}) {
    fail(RIFFLE_BAD_ARGUMENT, "the last message has role 'system', expected 'user'");
  }
  for (size_t i = system; i < messages.size(); i++) {
    const char* expected = (i - system) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      fail(RIFFLE_BAD_ARGUMENT, "messages[%zu] has role '%.40s', expected '%s'", i,
           messages[i].role.c_str(), expected);
    }
  }
}

}  // namespace

std::span<const ChatFamily> chat_families() { return kFamilies; }

const ChatFamily& chat_family_named(std::string_view name) {
  for (const ChatFamily& family : kFamilies) {
    if (name == family.name) return family;
  }
  fail(RIFFLE_BAD_ARGUMENT, "there is no chat template '%.40s'; riffle has %s",
       std::string(name).c_str(), chat_family_names().c_str());
}

std::string chat_family_names() {
  std::string names;
  for (const ChatFamily& family : kFamilies)
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  return names;
}

SourcedText family_text(const ChatFamily& family, const std::string& bos, const std::string& eos,
                        const std::vector<ChatMessage>& messages) {
  check_roles(family, messages);
  return Writer(family, bos, eos).write(messages);
}

}  // namespace riffle
