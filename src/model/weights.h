// From the tensors a file lists to the weights of a Llama: names, shapes and types checked, nothing
// copied but norms.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/formats/checked.h"
#include "model/model.h"

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

// How a format names the tensors of a Llama.
struct TensorNames {
  const char *embedding, *final_norm, *output;
  const char* layer;  // printf format of what every name of layer %d begins with
  const char *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *w1, *w3, *w2;  // what follows
  const char *bq, *bk, *bv, *bo, *b1, *b3, *b2;
  const char *q_norm, *k_norm;
};
extern const TensorNames kGgufNames, kHuggingFaceNames;

// Bytes of a tensor of this shape (outermost first; the last is the row). false: it does not fit 64
// bits, a dimension is zero, or rows of a quantised type are not whole blocks.
bool tensor_bytes(DType type, const std::vector<uint64_t>& shape, uint64_t* bytes);

// "[512][1408]"
std::string shape_text(const std::vector<uint64_t>& shape);

// Fills model.weights, owned, n_params and weight_bytes by model.config. where: file or folder, for
// missing tensors. Throws RIFFLE_BAD_MODEL (missing tensor, wrong shape), RIFFLE_UNSUPPORTED
// (tensor type; a tensor that the config does not ask for, such as a bias), RIFFLE_ABORTED
// (progress said so).
void bind_weights(Model& model, const TensorTable& table, const TensorNames& names,
                  const std::string& where, const LoadProgress& progress);

}  // namespace riffle
