// The enums of options in the messages of tests: their numbers.
#pragma once
#include <ostream>
#include <type_traits>

#include "util/options.h"

namespace riffle {

template <class Enum, class... Any>
inline constexpr bool kIsOneOf = (std::is_same_v<Enum, Any> || ...);

template <class Enum>
requires kIsOneOf<Enum, SelectorKind, BlockDigest, StopRule, HeadRule, RankBy, BaseSelection,
                  VoteRule, PositionRule, DeviceKind, EvictRule, ResidencyKind, KvKind, IsaChoice,
                  PrefillMode>
    std::ostream& operator<<(std::ostream& out, Enum value) {
  return out << static_cast<int>(value);
}

}  // namespace riffle
