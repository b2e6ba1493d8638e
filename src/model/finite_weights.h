// Finds weights that are infinite or NaN, in matrices of any type. Norms, biases and small matrices
// are checked when they are bound (weights.cpp). The rest is checked when a device is about to read
// it, not at load: `riffle info` and a tokenizer need no weights, and the check reads the whole
// file.
#pragma once
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "model/named_tensors.h"

namespace riffle {

// The first value of `rows` rows from `data` that makes weights infinite or NaN: in a quantised
// type, a scale or a minimum of a block. index: place of the block in its row, or of the value.
struct NotFinite {
  int64_t row = -1, index = 0;  // row -1: there is none
  float value = 0;
};
NotFinite find_not_finite(DType type, const void* data, int64_t rows, int64_t cols);
std::string text_of(DType type, const NotFinite& found);  // "a scale of inf in row 5, block 2"

// Checks a model's matrices, in threads of its own. The matrices are listed before the threads
// start. From then on the threads only read: the model must not change until finish.
class FiniteCheck {
 public:
  FiniteCheck(Model& model, int n_threads);
  ~FiniteCheck();  // stops
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;
  // Waits for the end. Throws RIFFLE_BAD_MODEL, naming file, tensor, row and value.
  void finish();

 private:
  void run(int n_threads);

  const Model& model_;
  const std::vector<NamedTensor> tensors_;
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace riffle
