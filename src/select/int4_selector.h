// Base of selectors that keep INT4 keys of a sequence.
#pragma once
#include <memory>

#include "select/int4_keys.h"
#include "select/selector.h"

namespace riffle {

class Int4Selector : public Selector {
 public:
  // keeps_keys: false if the settings need no keys.
  explicit Int4Selector(bool keeps_keys) : keeps_keys_(keeps_keys) {}

  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    return keeps_keys_ ? std::make_unique<Int4Keys>(shape) : nullptr;
  }
  bool fits(const SelectorState* state) const override {
    return !keeps_keys_ || dynamic_cast<const Int4Keys*>(state) != nullptr;
  }
  uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const override {
    return keeps_keys_ ? Int4Keys::bytes_for(shape, n_tokens) : 0;
  }

 private:
  bool keeps_keys_;
};

}  // namespace riffle
