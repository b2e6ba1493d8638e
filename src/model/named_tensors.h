// A model's tensors in a list, with their names in files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/model.h"

namespace riffle {

// One matrix or vector of a model, under the name that GGUF gives it.
struct NamedTensor {
  std::string name;
  Tensor* tensor;
  enum Role { EMBEDDING, OUTPUT, V, DOWN, OTHER, ROUTER, TAPS, VECTOR } role;
  int layer;        // -1: of no layer
  bool qk = false;  // rows (of a bias: values) are those of query or key heads
  // Experts are parts of one tensor of three dimensions; they follow each other.
  int part = 0, parts = 1;
  // Recurrent layers (MixTensor): rows of heads of the values; v_columns: in place of rows, columns
  // from the first on.
  int64_t v_first = 0, v_size = 0;
  bool v_columns = false;
  int64_t part_cols = 0;  // rows are read in parts of this many columns; 0: whole
};
// Returns the tensors in the order of the layers, without a tied output.
std::vector<NamedTensor> named_tensors(Model& model);
// Does the same with other names, such as those of a Hugging Face folder.
std::vector<NamedTensor> named_tensors(Model& model, const TensorNames& names);
// Returns the tensor's shape in the file, the slowest dimension first. The shape of a part has room
// for all parts.
std::vector<uint64_t> file_shape(const NamedTensor& tensor);

}  // namespace riffle
