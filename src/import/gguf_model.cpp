// Apart from load_model.cpp so that the fuzzers need not link the tokenizer.
#include <algorithm>
#include <utility>

#include "import/draft.h"
#include "import/load_model.h"
#include "import/read_config.h"
#include "model/families/family.h"
#include "model/weights.h"

namespace riffle {

Draft draft_from_gguf(const GgufFile& gguf, const LoadProgress& progress, GgufVocab* vocab) {
  Draft draft;
  ModelParts& parts = draft.parts;
  parts.format = "gguf";
  draft.config = config_from_gguf(gguf, vocab);
  parts.chat_template = gguf.string("tokenizer.chat_template").value_or("");
  const Family& family = *family_of_architecture(draft.config.architecture);
  draft.config.text_part = std::ranges::any_of(
      gguf.tensors, [](const auto& tensor) { return is_part_for_images(tensor.first); });
  parts.gguf_names = parts.file_names = family.gguf_names;
  bind_weights(parts, draft.config, gguf.tensors, *family.gguf_names, gguf.file.name, progress);
  draft.config.draft_head = parts.weights.draft.proj.rows > 0;
  return draft;
}

std::unique_ptr<Model> model_from_gguf(const GgufFile& gguf, const LoadProgress& progress) {
  GgufVocab vocab;
  Draft draft = draft_from_gguf(gguf, progress, &vocab);
  return std::make_unique<Model>(std::move(draft.config), std::move(draft.parts));
}

}  // namespace riffle
