#include "model/model.h"

#include "chat/chat_template.h"
#include "model/weights.h"
#include "text/tokenizer.h"
#include "util/mapped_file.h"
#include "util/read_ahead.h"

namespace riffle {

Config draft_config(const Config& c) {
  // A guess rarely depends on far tokens, and this bounds what a session keeps for guesses.
  constexpr int kWindow = 1024;
  Config draft = c;
  int last = c.n_layers - 1;
  while (last > 0 && !c.attends(last)) --last;
  const LayerConfig layer = c.layers[last];
  draft.n_layers = 1;
  draft.n_draft_layers = 0;
  draft.layers = {layer};
  draft.layers[0].window = kWindow;
  draft.recurrence = {};
  return draft;
}

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
