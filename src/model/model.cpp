#include "model/model.h"

#include "chat/chat_template.h"
#include "model/weights.h"
#include "text/tokenizer.h"
#include "util/mapped_file.h"
#include "util/read_ahead.h"

namespace riffle {

ModelParts::ModelParts() : gguf_names(&kGgufNames), file_names(&kGgufNames) {}
ModelParts::~ModelParts() = default;
ModelParts::ModelParts(ModelParts&&) noexcept = default;
ModelParts& ModelParts::operator=(ModelParts&&) noexcept = default;

int drawable_ids(const Model& model) {
  const Config& c = model.config;
  if (!model.tokenizer) return c.vocab_size;
  const int known = std::min(c.vocab_size, model.tokenizer->vocab_size());
  int n = std::min(known, model.tokenizer->used_size());
  for (const int id : c.eos_ids)
    if (id < known) n = std::max(n, id + 1);
  return n;
}

}  // namespace riffle
