// Functions on settings; settings_table.cpp has the table.
#include "util/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "util/error.h"
#include "util/nearest_word.h"
#include "util/size_text.h"

namespace riffle {
namespace {

constexpr double kBeyondUint64 = 18446744073709551616.0;  // 2^64

template <typename T>
T read(const Setting& s, const void* options) {
  T value;
  std::memcpy(&value, static_cast<const char*>(options) + s.offset, sizeof value);
  return value;
}

template <typename T>
void write(const Setting& s, void* options, T value) {
  std::memcpy(static_cast<char*>(options) + s.offset, &value, sizeof value);
}

const std::string& text_member(const Setting& s, const void* options) {
  return *reinterpret_cast<const std::string*>(static_cast<const char*>(options) + s.offset);
}

bool words_are_numbers(const Setting& s) { return s.words[0] >= '0' && s.words[0] <= '9'; }

bool is_whole(const Setting& s) {
  return s.type == MemberType::INT32 || s.type == MemberType::INT64 ||
         s.type == MemberType::UINT64 || s.type == MemberType::SIZE;
}

// Returns the word at this place of the list; "?" beyond its end.
std::string_view word_at(std::string_view words, double place) {
  for (; place > 0; --place) {
    const size_t end = words.find('|');
    if (end == words.npos) return "?";
    words.remove_prefix(end + 1);
  }
  return words.substr(0, words.find('|'));
}

std::optional<double> place_of(std::string_view words, std::string_view word) {
  for (double place = 0; !words.empty(); ++place) {
    const std::string_view one = words.substr(0, words.find('|'));
    if (one == word) return place;
    words.remove_prefix(std::min(words.size(), one.size() + 1));
  }
  return std::nullopt;
}

std::string with_commas(std::string_view words) {
  std::string out;
  for (const char c : words) out += c == '|' ? std::string(", ") : std::string(1, c);
  return out;
}

template <typename T>
std::optional<T> whole(std::string_view text) {
  T v{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return v;
}

// Reads a number such as 0.1, 2048, 2K or -1.
std::optional<double> number_of(const Setting& s, std::string_view text) {
  if (s.type == MemberType::FLOAT)
    if (const auto v = whole<double>(text)) return v;
  if (s.low < 0 && text.starts_with("-"))
    if (const auto v = whole<int64_t>(text)) return static_cast<double>(*v);
  if (const auto n = size_of(text, s.type == MemberType::SIZE)) return static_cast<double>(*n);
  return std::nullopt;
}

std::optional<double> value_of(const Setting& s, std::string_view text) {
  if (s.type == MemberType::BOOL && !*s.words)
    return text == "true"    ? std::optional<double>(1)
           : text == "false" ? std::optional<double>(0)
                             : std::nullopt;
  if (!*s.words) return number_of(s, text);
  const auto place = place_of(s.words, text);
  if (!place) return std::nullopt;
  return words_are_numbers(s) ? number_of(s, text) : s.low + *place;
}

[[noreturn]] void refuse(const Setting& s, std::string_view text) {
  // A plain number too small to be meant in bytes, such as 12 for 12G.
  if (s.type == MemberType::SIZE) {
    const auto n = size_of(text, true);
    if (n && *n > 0 && *n < 1 << 20)
      fail(RIFFLE_BAD_ARGUMENT, "`%s`: '%s' is %s bytes, expected a size such as %s%s", s.id,
           std::string(text).c_str(), std::string(text).c_str(), std::string(text).c_str(),
           *n < 1000 ? "G" : "M");
  }
  fail(RIFFLE_BAD_ARGUMENT, "`%s`: '%.100s': expected %s", s.id, std::string(text).c_str(),
       expected_of(s).c_str());
}

bool lacks_unit(const Setting& s, std::string_view text) {
  if (s.type != MemberType::SIZE || text.find_first_not_of("0123456789") != text.npos) return false;
  const auto n = size_of(text, true);
  return n && *n > 0 && *n < 1 << 20;
}

}  // namespace

const Setting* find_setting(std::string_view id) {
  for (const Setting& s : settings())
    if (id == s.id) return &s;
  return nullptr;
}

const Setting* setting_named(std::string_view name) {
  std::string dashes(name);
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  for (const Setting& s : settings())
    if (dashes == s.name) return &s;
  return nullptr;
}

std::string nearest_setting(std::string_view name) {
  std::string dashes(name);
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  NearestWord nearest(dashes);
  std::string best;
  for (const Setting& s : settings()) {
    if (nearest.offer(s.name)) best = s.name;
    // "n_ctx" for "ctx": the member's own name.
    std::string id = s.id;
    std::replace(id.begin(), id.end(), '_', '-');
    if (nearest.offer(id.substr(id.find('.') + 1))) best = s.name;
  }
  return best;
}

double setting_value(const Setting& s, const void* options) {
  switch (s.type) {
    case MemberType::BOOL: return read<bool>(s, options);
    case MemberType::INT32: return read<int32_t>(s, options);
    case MemberType::INT64: return static_cast<double>(read<int64_t>(s, options));
    case MemberType::UINT64:
    case MemberType::SIZE: return static_cast<double>(read<uint64_t>(s, options));
    case MemberType::FLOAT: return read<float>(s, options);
    case MemberType::TEXT: break;
  }
  return std::nan("");
}

void set_setting(const Setting& s, void* options, double value) {
  switch (s.type) {
    case MemberType::BOOL: return write<bool>(s, options, value != 0);
    case MemberType::INT32: return write<int32_t>(s, options, static_cast<int32_t>(value));
    case MemberType::INT64: return write<int64_t>(s, options, static_cast<int64_t>(value));
    case MemberType::UINT64:
    case MemberType::SIZE:
      return write<uint64_t>(s, options,
                             value < kBeyondUint64 ? static_cast<uint64_t>(value) : UINT64_MAX);
    case MemberType::FLOAT: return write<float>(s, options, static_cast<float>(value));
    case MemberType::TEXT: return;
  }
}

bool setting_allows(const Setting& s, double v) {
  const auto inside = [&](double x) {
    return x >= s.low && x <= s.high && !(s.above_low && x == s.low) &&
           !(s.below_high && x == s.high);
  };
  if (!inside(v)) return false;
  // A float may round to a value that is not allowed.
  if (s.type == MemberType::FLOAT) return inside(static_cast<double>(static_cast<float>(v)));
  if (v != std::floor(v)) return false;
  return !words_are_numbers(s) || place_of(s.words, format("%.0f", v)).has_value();
}

std::string setting_text(const Setting& s, const void* options) {
  if (s.type == MemberType::TEXT) return text_member(s, options);
  if (*s.words && !words_are_numbers(s))
    return std::string(word_at(s.words, setting_value(s, options) - s.low));
  switch (s.type) {
    case MemberType::BOOL: return read<bool>(s, options) ? "true" : "false";
    case MemberType::INT32: return std::to_string(read<int32_t>(s, options));
    case MemberType::INT64: return std::to_string(read<int64_t>(s, options));
    case MemberType::UINT64:
    case MemberType::SIZE: return std::to_string(read<uint64_t>(s, options));
    default: break;
  }
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), read<float>(s, options));
  return {digits, end.ptr};
}

void set_setting_text(const Setting& s, void* options, std::string_view text) {
  if (s.type == MemberType::TEXT) {
    // "": the default. Words name the values; names of models and formats are checked where those
    // are known.
    if (*s.words && !text.empty() && !place_of(s.words, text)) refuse(s, text);
    const_cast<std::string&>(text_member(s, options)) = text;
    return;
  }
  // Keeps all digits of a number that a double may not hold.
  if (s.type == MemberType::UINT64) {
    const auto exact = whole<uint64_t>(text);
    if (!exact) refuse(s, text);
    return write<uint64_t>(s, options, *exact);
  }
  const auto v = value_of(s, text);
  if (!v || lacks_unit(s, text) || !setting_allows(s, *v)) refuse(s, text);
  set_setting(s, options, *v);
}

std::string expected_of(const Setting& s) {
  if (s.type == MemberType::BOOL && !*s.words) return "true or false";
  if (*s.words) return "one of " + with_commas(s.words);
  if (s.type == MemberType::TEXT) return "a text";
  if (s.type == MemberType::SIZE)
    return std::string("a size ") + size_examples(true) + ", " + s.range;
  if (s.type == MemberType::FLOAT) return std::string("a number, ") + s.range;
  const bool examples = s.type != MemberType::UINT64 && s.high >= 32768;
  return std::string("a whole number") + (examples ? std::string(" ") + size_examples(false) : "") +
         ", " + s.range;
}

void check_settings(OptionsKind kind, const void* options) {
  for (const Setting& s : settings()) {
    if (s.options != kind || s.type == MemberType::BOOL || s.type == MemberType::TEXT) continue;
    if (!setting_allows(s, setting_value(s, options)))
      fail(RIFFLE_BAD_ARGUMENT, "%s`%s` is %s, expected %s",
           kind == OptionsKind::SCHEDULER ? "scheduler options: " : "", s.id,
           is_whole(s) && !*s.words ? setting_text(s, options).c_str()
                                    : format("%.9g", setting_value(s, options)).c_str(),
           s.range);
  }
}

void check_answer_setting(std::string_view id, double value) {
  const Setting& s = *find_setting(id);
  if (!setting_allows(s, value))
    fail(RIFFLE_BAD_ARGUMENT,
         s.type == MemberType::FLOAT ? "%s is %g, expected %s" : "%s is %.0f, expected %s",
         std::string(id.substr(id.find('.') + 1)).c_str(), value, s.range);
}

std::string name_settings(std::string_view text, riffle_setting_name_fn name) {
  std::string out;
  for (;;) {
    const size_t open = text.find('`');
    const size_t close = open == text.npos ? text.npos : text.find('`', open + 1);
    if (close == text.npos) return out.append(text);
    const Setting* s = find_setting(text.substr(open + 1, close - open - 1));
    out.append(text.substr(0, open));
    if (s) {
      const char* const named = name ? name(s->name) : nullptr;
      out.append(named ? named : s->name);
      text.remove_prefix(close + 1);
    } else {
      out.push_back('`');
      text.remove_prefix(open + 1);
    }
  }
}

}  // namespace riffle
