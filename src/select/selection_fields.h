// What each setting of riffle_selection may be and which selectors read it: the one table that the
// library checks by and shows to programs (riffle_selection_get_field).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "riffle.h"

namespace riffle {

struct SelectionField {
  const char* name;  // of the member
  size_t offset;
  bool whole;  // int32_t or an enum; else float
  double low, high;
  bool above_low, below_high;  // the end itself is not allowed
  const char* note;            // behind the range; may be empty
  uint32_t selectors;          // 1 << riffle_selector: who reads it
  uint32_t bases;              // 1 << riffle_base: with which bases twilight does, if it does

  double value(const riffle_selection& s) const;
  bool allows(double value) const;  // false for NaN
  std::string range() const;        // "more than 0, at most 1"
};

std::span<const SelectionField> selection_fields();

}  // namespace riffle
