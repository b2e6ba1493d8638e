#include "formats/raw_tensor.h"

#include "util/checked.h"

namespace riffle {

bool tensor_bytes(DType type, const std::vector<uint64_t>& shape, uint64_t* bytes) {
  if (shape.empty() || shape.back() == 0) return false;
  const DTypeInfo& info = dtype_info(type);
  if (shape.back() % info.block_values != 0) return false;
  uint64_t total = shape.back() / info.block_values;
  if (!checked_mul(total, info.block_bytes, &total)) return false;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    if (shape[i] == 0 || !checked_mul(total, shape[i], &total)) return false;
  }
  *bytes = total;
  return true;
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string out;
  for (const uint64_t n : shape) out += "[" + std::to_string(n) + "]";
  return out.empty() ? "no shape" : out;
}

}  // namespace riffle
