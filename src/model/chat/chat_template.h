// Conversations to tokens, by the format that a model's chat template stands for or that the user
// names. Templates are never run on a conversation: one is known by what TemplateReader says it
// prints, or not at all.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/chat_family.h"

namespace riffle {

class Tokenizer;

struct ChatMessage {
  std::string role, content;
};

// "llama3, llama2, ...": the names that chat_format_named takes.
std::string chat_format_names();
// Throws RIFFLE_BAD_ARGUMENT, listing the names, if there is none of this name.
ChatFormat chat_format_named(std::string_view name);

// The family whose text, for every conversation that chat_tokens takes, is what the template
// (Jinja, as the model file carries it) prints with Hugging Face's transformers; nothing if there
// is none. A default system message and whether the beginning-of-sequence token comes first are the
// template's own. One difference: where the template asks for today's date, it does not get one.
// bos, eos: the tokens as the vocabulary spells them, "" if it has none. Any text can be given: at
// most 256 KiB are looked at, for a bounded time.
std::optional<ChatFormat> recognise_chat_template(std::string_view template_text,
                                                  const std::string& bos, const std::string& eos);
std::optional<ChatFormat> recognise_chat_template(std::string_view template_text,
                                                  const Tokenizer& tokenizer);

// The conversation so that the model's answer comes next: [system,] user, assistant, user, ...,
// user. Throws RIFFLE_BAD_ARGUMENT (roles out of order, empty conversation), RIFFLE_BAD_TEXT (not
// UTF-8). As text, special tokens spelled out:
std::string chat_text(const ChatFormat& format, const std::string& bos, const std::string& eos,
                      const std::vector<ChatMessage>& messages);
// As ids: the format's control tokens become ids; the same spelled in a message's content stay
// plain text. Throws RIFFLE_UNSUPPORTED too, if the vocabulary lacks a token that the format needs.
std::vector<int32_t> chat_tokens(const Tokenizer& tokenizer, const ChatFormat& format,
                                 const std::vector<ChatMessage>& messages);

// Ids that end the model's turn in this format beside the vocabulary's end-of-sequence token
// (ChatML's <|im_end|>, where that is another): those that the vocabulary has.
std::vector<int32_t> chat_end_ids(const Tokenizer& tokenizer, const ChatFormat& format);

}  // namespace riffle
