// Tensors as model files list them.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/common/dtype.h"

namespace riffle {

// A tensor as a file lists it. Its bytes were checked to lie inside the file and to match type and
// shape, unless the type is one riffle does not have.
struct RawTensor {
  std::string file;             // for error texts
  std::string type_name;        // as the file's format spells it: "Q4_K", "F8_E4M3"
  std::optional<DType> type;    // nothing: a type riffle does not have
  std::vector<uint64_t> shape;  // outermost first, no zeros
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};
using TensorTable = std::map<std::string, RawTensor, std::less<>>;

// Tells whether the name of a tensor begins like this.
inline bool has_prefix(const TensorTable& table, std::string_view prefix) {
  const auto it = table.lower_bound(prefix);
  return it != table.end() && it->first.starts_with(prefix);
}

// Computes the bytes of a tensor of this shape (outermost first; the last is the row). Returns
// false if they do not fit 64 bits, a dimension is zero, or rows of a quantised type are not whole
// blocks.
bool tensor_bytes(DType type, const std::vector<uint64_t>& shape, uint64_t* bytes);

// Returns a text such as "[512][1408]".
std::string shape_text(const std::vector<uint64_t>& shape);

}  // namespace riffle
