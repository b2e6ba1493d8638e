// A chat template of a model file; where one is recognised, its text for a conversation.
#include <algorithm>
#include <cstdlib>

#include "model/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto format =
      riffle::recognise_chat_template({reinterpret_cast<const char*>(data), size}, "<s>", "</s>");
  if (!format) return 0;
  // Whatever it was taken for holds every message once.
  const riffle::TextPieces text = riffle::chat_pieces(*format, false, 2);
  const auto contents = [](const riffle::TextPiece& piece) {
    return piece.kind == riffle::TextPiece::CONTENT || piece.kind == riffle::TextPiece::TRIMMED;
  };
  if (std::count_if(text.begin(), text.end(), contents) != 3) std::abort();
  return 0;
}
