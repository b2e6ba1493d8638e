// Apart from load_model.cpp so that the fuzzers need not link the tokenizer.
#include "import/load_model.h"
#include "import/read_config.h"
#include "model/families/family.h"
#include "model/weights.h"

namespace riffle {

std::unique_ptr<Model> model_from_gguf(const GgufFile& gguf, const LoadProgress& progress,
                                       GgufVocab* vocab) {
  GgufVocab unwanted;
  auto model = std::make_unique<Model>();
  model->format = "gguf";
  model->config = config_from_gguf(gguf, vocab ? vocab : &unwanted);
  model->chat_template = gguf.string("tokenizer.chat_template").value_or("");
  const Family& family = *family_of_architecture(model->config.architecture);
  model->gguf_names = model->file_names = family.gguf_names;
  bind_weights(*model, gguf.tensors, *family.gguf_names, gguf.file.name, progress);
  return model;
}

}  // namespace riffle
