// Shared parts of the files with the rows of the table. Names here are those of the rows: only
// these files include it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "util/options.h"
#include "util/settings.h"

namespace riffle::settings_rows {

template <class Enum>
constexpr double number(Enum value) {
  return static_cast<double>(value);
}
inline constexpr double kMostBlocks = 1 << 20, kMostTokens = 1 << 28, kMostBudget = 1e9,
                        kMostInt = 2147483647.0, kMostBytes = 18446744073709551616.0,
                        kMostFloat = std::numeric_limits<float>::max();
inline constexpr const char* kShareOrTokens = " (up to 1: a share; above 1: a number of tokens)";

// The titles under which the command line's help has the settings.
inline constexpr const char *kContext = "Context", *kSelection = "Selection of KV blocks",
                            *kAlways = "Blocks that are always read",
                            *kLayout = "Memory layout and kernels", *kSteps = "Decode steps",
                            *kCompare = kComparisonGroup, *kScheduling = "Many requests at once",
                            *kAnswer = "Answer", *kSampling = "Sampling, templates and weights";

inline constexpr MemberType kBool = MemberType::BOOL, kInt = MemberType::INT32,
                            kLong = MemberType::INT64, kSize = MemberType::SIZE,
                            kFloat = MemberType::FLOAT, kText = MemberType::TEXT;

// A row leaves out values that are 0, false or "". Its `range` is the text after the numbers of the
// range.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

std::span<const Setting> selection();
std::span<const Setting> sampling();
std::span<const Setting> generate();

}  // namespace riffle::settings_rows
