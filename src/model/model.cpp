#include "model/model.h"

#include "model/chat/chat_template.h"
#include "model/formats/mapped_file.h"
#include "model/formats/read_ahead.h"
#include "model/text/tokenizer.h"

namespace riffle {

Model::Model() = default;
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

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
