#include "model/model.h"

#include "model/mapped_file.h"
#include "model/tokenizer.h"

namespace riffle {

const char* dtype_name(DType type) {
  switch (type) {
    case DType::F32: return "F32";
    case DType::F16: return "F16";
    case DType::BF16: return "BF16";
    case DType::Q8_0: return "Q8_0";
  }
  return "?";
}

int64_t row_bytes(DType type, int64_t cols) {
  switch (type) {
    case DType::F32: return 4 * cols;
    case DType::F16:
    case DType::BF16: return 2 * cols;
    case DType::Q8_0: return cols / kQ8Block * kQ8BlockBytes;
  }
  return 0;
}

Model::Model() = default;
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

}  // namespace riffle
