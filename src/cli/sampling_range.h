// The values that settings of the sampler may have: those of flags, of /set and of lines of a
// batch.
#pragma once
#include <limits>

#include "riffle.h"

namespace riffle::cli {

struct Range {
  double low, high;
};

inline constexpr double kMaxInt = std::numeric_limits<int32_t>::max();

// Describes a member of riffle_sampling.
template <auto member>
inline constexpr Range range_of{};
template <>
inline constexpr Range range_of<&riffle_sampling::temperature>{0, 100};
template <>
inline constexpr Range range_of<&riffle_sampling::top_k>{0, kMaxInt};
template <>
inline constexpr Range range_of<&riffle_sampling::top_p>{0, 1};
template <>
inline constexpr Range range_of<&riffle_sampling::min_p>{0, 1};
template <>
inline constexpr Range range_of<&riffle_sampling::xtc_probability>{0, 1};
template <>
inline constexpr Range range_of<&riffle_sampling::xtc_threshold>{0, 1};
template <>
inline constexpr Range range_of<&riffle_sampling::repeat_penalty>{0.001, 1000};
template <>
inline constexpr Range range_of<&riffle_sampling::repeat_last_n>{-1, kMaxInt};
template <>
inline constexpr Range range_of<&riffle_sampling::frequency_penalty>{-2, 2};
template <>
inline constexpr Range range_of<&riffle_sampling::presence_penalty>{-2, 2};
template <>
inline constexpr Range range_of<&riffle_sampling::dry_multiplier>{0, 1000};
template <>
inline constexpr Range range_of<&riffle_sampling::dry_base>{1, 1000};
template <>
inline constexpr Range range_of<&riffle_sampling::dry_allowed_length>{0, kMaxInt};
template <>
inline constexpr Range range_of<&riffle_sampling::dry_penalty_last_n>{-1, kMaxInt};

}  // namespace riffle::cli
