// Options of an answer, which riffle_generate and schedulers take.
#pragma once
#include "api/struct_sizes.h"
#include "engine/answer.h"
#include "util/options.h"

namespace riffle {

// Their values are checked by check_generate_options, which a scheduler calls itself.
inline GenerateOptions known_generate_options(const riffle_generate_options* given) {
  const auto o = known(given, riffle_generate_defaults_sized, "generate options");
  check_member(o.sampling, "sampling");
  return std::bit_cast<GenerateOptions>(o);
}

}  // namespace riffle
