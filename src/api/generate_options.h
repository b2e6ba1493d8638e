// Options of an answer, which riffle_generate and schedulers take.
#pragma once
#include "api/struct_sizes.h"
#include "engine/answer.h"

namespace riffle {

inline riffle_generate_options known_generate_options(const riffle_generate_options* given) {
  const auto o = known(given, riffle_generate_defaults_sized, "generate options");
  if (o.sampling.struct_size != sizeof o.sampling)
    fail(RIFFLE_BAD_ARGUMENT, "sampling: struct_size is %zu, expected %zu", o.sampling.struct_size,
         sizeof o.sampling);
  check_reserved(o.sampling.reserved, "sampling");
  check_generate_options(o);
  return o;
}

}  // namespace riffle
