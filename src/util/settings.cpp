// Functions on settings; settings_table.cpp has the table.
#include "util/settings.h"

#include <cmath>
#include <cstring>

#include "util/error.h"

namespace riffle {
namespace {

constexpr double kBeyondUint64 = 18446744073709551616.0;  // 2^64

template <typename T>
T read(const riffle_setting& s, const void* options) {
  T value;
  std::memcpy(&value, static_cast<const char*>(options) + s.offset, sizeof value);
  return value;
}

template <typename T>
void write(void* at, double value) {
  const T v = static_cast<T>(value);
  std::memcpy(at, &v, sizeof v);
}

// The value as errors show it. An integer has all its digits, which a double may not hold.
std::string value_text(const riffle_setting& s, const void* options) {
  switch (s.type) {
    case RIFFLE_MEMBER_BOOL: return read<bool>(s, options) ? "true" : "false";
    case RIFFLE_MEMBER_INT32: return std::to_string(read<int32_t>(s, options));
    case RIFFLE_MEMBER_INT64: return std::to_string(read<int64_t>(s, options));
    case RIFFLE_MEMBER_UINT64: return std::to_string(read<uint64_t>(s, options));
    case RIFFLE_MEMBER_FLOAT: break;
  }
  return format("%.9g", static_cast<double>(read<float>(s, options)));
}

}  // namespace

const riffle_setting* find_setting(std::string_view id) {
  for (const riffle_setting& s : settings())
    if (id == s.id) return &s;
  return nullptr;
}

double setting_value(const riffle_setting& s, const void* options) {
  switch (s.type) {
    case RIFFLE_MEMBER_BOOL: return read<bool>(s, options);
    case RIFFLE_MEMBER_INT32: return read<int32_t>(s, options);
    case RIFFLE_MEMBER_INT64: return static_cast<double>(read<int64_t>(s, options));
    case RIFFLE_MEMBER_UINT64: return static_cast<double>(read<uint64_t>(s, options));
    case RIFFLE_MEMBER_FLOAT: return read<float>(s, options);
  }
  return 0;
}

void set_setting(const riffle_setting& s, void* options, double value) {
  void* at = static_cast<char*>(options) + s.offset;
  switch (s.type) {
    case RIFFLE_MEMBER_BOOL: write<bool>(at, value); break;
    case RIFFLE_MEMBER_INT32: write<int32_t>(at, value); break;
    case RIFFLE_MEMBER_INT64: write<int64_t>(at, value); break;
    case RIFFLE_MEMBER_UINT64:
      if (value < kBeyondUint64) {
        write<uint64_t>(at, value);
      } else {
        const uint64_t most = UINT64_MAX;
        std::memcpy(at, &most, sizeof most);
      }
      break;
    case RIFFLE_MEMBER_FLOAT: write<float>(at, value); break;
  }
}

bool setting_allows(const riffle_setting& s, double v) {
  const auto inside = [&](double x) {
    return x >= s.low && x <= s.high && !(s.above_low && x == s.low) &&
           !(s.below_high && x == s.high);
  };
  if (!inside(v)) return false;
  // A float may round to a value that is not allowed.
  if (s.type == RIFFLE_MEMBER_FLOAT) return inside(static_cast<double>(static_cast<float>(v)));
  if (v != std::floor(v)) return false;
  if (s.words[0] >= '0' && s.words[0] <= '9')
    return ("|" + std::string(s.words) + "|").find(format("|%.0f|", v)) != std::string::npos;
  return true;
}

void set_defaults(riffle_options_kind kind, void* options) {
  for (const riffle_setting& s : settings())
    if (s.options == kind) set_setting(s, options, s.standard);
}

void check_settings(riffle_options_kind kind, const void* options) {
  for (const riffle_setting& s : settings()) {
    if (s.options != kind || s.type == RIFFLE_MEMBER_BOOL) continue;
    if (!setting_allows(s, setting_value(s, options)))
      fail(RIFFLE_BAD_ARGUMENT, "%s`%s` is %s, expected %s",
           kind == RIFFLE_OPTIONS_SCHEDULER ? "scheduler options: " : "", s.id,
           value_text(s, options).c_str(), s.range);
  }
}

void check_answer_setting(std::string_view id, double value) {
  const riffle_setting& s = *find_setting(id);
  if (!setting_allows(s, value))
    fail(RIFFLE_BAD_ARGUMENT,
         s.type == RIFFLE_MEMBER_FLOAT ? "%s is %g, expected %s" : "%s is %.0f, expected %s",
         std::string(id.substr(id.find('.') + 1)).c_str(), value, s.range);
}

std::string name_settings(std::string_view text, riffle_setting_name_fn name) {
  std::string out;
  for (;;) {
    const size_t open = text.find('`');
    const size_t close = open == text.npos ? text.npos : text.find('`', open + 1);
    if (close == text.npos) return out.append(text);
    const riffle_setting* s = find_setting(text.substr(open + 1, close - open - 1));
    out.append(text.substr(0, open));
    if (s) {
      const char* const named = name ? name(s->id) : nullptr;
      out.append(named ? named : s->id);
      text.remove_prefix(close + 1);
    } else {
      out.push_back('`');
      text.remove_prefix(open + 1);
    }
  }
}

}  // namespace riffle
