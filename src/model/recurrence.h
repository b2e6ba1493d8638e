// The kinds of layers that keep a recurrent state in place of keys and values, in one table: the
// tensors that they have, and the widths of what goes in, comes out and is kept. All code that
// binds, lists, counts or writes tensors reads this table.
#pragma once
#include <cstdint>
#include <vector>

#include "model/model.h"

namespace riffle {

// A tensor of such a layer, besides its output projection.
struct MixTensor {
  enum Role {
    PRODUCT,  // a matrix; its product with the layer's input is a part of what goes in
    TAPS,     // taps of a convolution, F32: [channels][taps], the newest token's last
    VECTOR,   // [1][cols] F32
    VALUES,   // [rows][cols] F32, as GGUF has them; folders have vectors
    DECAY,  // F32, at most 0: [rows][cols] in GGUF, or a vector if rows is 1; folders have log(-x)
  } role;
  int64_t rows, cols;
  // GATED_DELTA: the first row (of a vector: value) that belongs to heads of the values, and the
  // number of rows of each; v_size 0: none does.
  int64_t v_first = 0, v_size = 0;
};

struct RecurrenceInfo {
  Recurrence kind;
  const char* name;  // for error texts
  // Widths, in values, of a token's row of what goes into the layer after the products and of what
  // comes out before the output projection; and the number of values of its state.
  int64_t (*in)(const Config& config);
  int64_t (*out)(const Config& config);
  int64_t (*state)(const Config& config);
  // Returns the tensors in the order of LayerWeights::mix and of TensorNames::mix. A row that goes
  // in has the products' results in this order.
  std::vector<MixTensor> (*tensors)(const Config& config);
};

// Returns the entry of a model whose layers keep states. Requires: kind is not NONE.
const RecurrenceInfo& recurrence_info(const Config& config);

// Return the same; 0 and an empty list if the model has no such layers.
int64_t recurrent_in(const Config& config);
int64_t recurrent_out(const Config& config);
int64_t recurrent_state(const Config& config);
std::vector<MixTensor> recurrent_tensors(const Config& config);

}  // namespace riffle
