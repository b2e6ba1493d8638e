// Conversations to tokens. Templates are recognised by content, never executed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace riffle {

class Tokenizer;

struct ChatMessage {
  std::string role, content;
};

// template_text: as the model file carries it. Renders the conversation so that the model's answer comes next, as ids.
// Control tokens in the template become ids; the same spelled in a message's content stay plain text.
// Throws RIFFLE_UNSUPPORTED (none, or unknown template), RIFFLE_BAD_ARGUMENT (roles out of order, empty conversation).
std::vector<int32_t> chat_tokens(const Tokenizer& tokenizer, std::string_view template_text,
                                 const std::vector<ChatMessage>& messages);

}  // namespace riffle
