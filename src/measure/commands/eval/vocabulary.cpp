#include "measure/commands/eval/vocabulary.h"

namespace riffle::cli {

eval::Vocabulary eval_vocabulary(riffle_model* model, const riffle_model_info& info) {
  eval::Vocabulary v;
  const bool has_chat = *info.chat_template_name;
  v.encode = [model](std::string_view s) { return tokenize(model, s, 0); };
  v.chat = [model, has_chat](std::string_view s) {
    return has_chat ? chat_tokens(model, {{"user", std::string(s)}}) : std::vector<int32_t>();
  };
  v.piece = [model](int32_t id) { return riffle_token_piece(model, id); };
  v.size = info.vocab_size;
  v.bos_id = info.bos_id;
  v.eos_id = info.eos_id;
  return v;
}

}  // namespace riffle::cli
