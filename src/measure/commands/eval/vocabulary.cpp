#include "measure/commands/eval/vocabulary.h"

namespace riffle::cli {

eval::Vocabulary eval_vocabulary(riffle_model* model, const Facts& info) {
  eval::Vocabulary v;
  const bool has_chat = !info.text("chat_template_name").empty();
  v.encode = [model](std::string_view s) { return tokenize(model, s, 0); };
  v.chat = [model, has_chat](std::string_view s) {
    return has_chat ? chat_tokens(model, {{"user", std::string(s)}}) : std::vector<int32_t>();
  };
  v.piece = [model](int32_t id) { return riffle_token_piece(model, id); };
  v.size = info.id("vocab_size");
  v.bos_id = info.id("bos_id");
  v.eos_id = info.id("eos_id");
  return v;
}

}  // namespace riffle::cli
