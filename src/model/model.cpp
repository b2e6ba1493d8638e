#include "model/model.h"

#include "model/mapped_file.h"
#include "model/tokenizer.h"

namespace riffle {

Model::Model() = default;
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

}  // namespace riffle
