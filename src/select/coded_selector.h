// Base of selectors that keep codes of a sequence's keys.
#pragma once
#include <memory>

#include "select/selector.h"

namespace riffle {

// Keys: a class derived from KeyCodes.
template <class Keys>
class CodedSelector : public Selector {
 public:
  // keeps_keys: false if the settings need no codes.
  explicit CodedSelector(bool keeps_keys) : keeps_keys_(keeps_keys) {}

  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    return keeps_keys_ ? std::make_unique<Keys>(shape) : nullptr;
  }
  bool fits(const SelectorState* state) const override {
    return !keeps_keys_ || dynamic_cast<const Keys*>(state) != nullptr;
  }
  uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const override {
    return keeps_keys_ ? Keys::bytes_for(shape, n_tokens) : 0;
  }

 private:
  bool keeps_keys_;
};

}  // namespace riffle
