#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <utility>

#include "util/checked.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
constexpr unsigned kMaxRepeat = 1000;
constexpr unsigned kMaxNesting = 32;

// Bounds for patterns that riffle does not know, which may backtrack without end. They are
// interpreted, and a search proceeds in steps of kStartsAtOnce positions at which a match may
// begin; between steps the clock is checked.
constexpr size_t kStartsAtOnce = 256;
constexpr uint32_t kFirstMatchLimit = 1 << 10;
constexpr uint32_t kMaxMatchLimit = 1 << 22;
constexpr uint32_t kHeapKiB = 64 << 10;
constexpr double kSecondsBeside = 2, kSecondsPerByte = 2e-6;

constexpr size_t kJitStackBytes = 1 << 20;

// White space as in Oniguruma (Unicode's White_Space), for use in a class, and everything else.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kOtherThanSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// kDigitGroupsPattern for PCRE2. Each group of the pattern looks at all later digits, which takes
// quadratic time. Here only the first group of a run does; later ones follow it. The set is
// Oniguruma's word characters that are no digits: the pattern's \b after a digit is that none
// follows.
constexpr std::string_view kDigitGroups =
    R"(\G(?<=\p{Nd})\p{Nd}{3}|(?<!\p{Nd})\p{Nd}{1,3}(?=(?:\p{Nd}{3})*+)"
    R"((?![\p{Nd}\p{L}\p{M}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])))";

// General categories mean the same to both libraries.
constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                            "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                            "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                            "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};
constexpr std::string_view kScripts[] = {"Han",        "Hiragana", "Katakana", "Hangul", "Latin",
                                         "Greek",      "Cyrillic", "Arabic",   "Hebrew", "Thai",
                                         "Devanagari", "Bengali",  "Lao",      "Khmer"};

bool is_alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Translates Oniguruma's Ruby syntax to PCRE2's. Only syntax with the same meaning, or with a
// translation of the same meaning, is accepted.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& file, const std::string& field)
      : in_(pattern), file_(file), field_(field) {}

  std::string run() {
    if (in_.empty() || in_.size() > kMaxPatternBytes) {
      unsupported(file_, field_, std::to_string(in_.size()) + " bytes",
                  "1 to " + std::to_string(kMaxPatternBytes) + " bytes");
    }
    unsigned depth = 0;
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      switch (c) {
        case '\\': escape(false); break;
        case '[': set(); break;
        case '(':
          if (++depth > kMaxNesting)
            refuse("groups nested too deep", "at most " + std::to_string(kMaxNesting) + " levels");
          group();
          break;
        case ')':
          if (depth-- == 0) refuse(")", "a group that it ends");
          out_ += c;
          pos_++;
          break;
        case '|':
          out_ += c;
          pos_++;
          break;
        case '.':
          out_ += R"([^\x{a}])";
          pos_++;
          break;
        // Lines end only in a line feed.
        case '^':
          out_ += R"((?<![^\x{a}]))";
          pos_++;
          break;
        case '$':
          // Oniguruma finds no line after a last line feed.
          out_ += R"((?:(?=\x{a})|(?<!\x{a})\z))";
          pos_++;
          break;
        case '*':
        case '+':
        case '?':
          out_ += c;
          pos_++;
          if (pos_ < in_.size() && (in_[pos_] == '?' || in_[pos_] == '+')) out_ += in_[pos_++];
          if (pos_ < in_.size() && (in_[pos_] == '*' || in_[pos_] == '?' || in_[pos_] == '+'))
            refuse_here("quantifier");
          break;
        case '{': repeat(); break;
        default: literal(c);
      }
    }
    if (depth != 0) refuse("a group without end", ")");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const {
    unsupported(file_, field_, found + " in \"" + printable(in_, 120) + "\"", expected);
  }
  [[noreturn]] void refuse_here(const char* what) const {
    refuse(std::string(what) + " " + std::string(in_.substr(pos_, 6)) + " at byte " +
               std::to_string(pos_),
           "a part of a regular expression that riffle knows");
  }
  bool at(std::string_view text) const { return in_.substr(pos_).starts_with(text); }

  void code_point(uint32_t c) { out_ += format("\\x{%x}", c); }

  void literal(char c) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x80 || is_alnum(c)) out_ += c;
    else code_point(byte);
    pos_++;
  }

  uint32_t hex(size_t max_digits, size_t min_digits) {
    uint32_t value = 0;
    size_t n = 0;
    for (; n < max_digits && pos_ < in_.size(); n++, pos_++) {
      const char c = in_[pos_];
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) break;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (n < min_digits || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      refuse_here("character code");
    return value;
  }

  void escape(bool in_set) {
    const size_t start = pos_++;
    if (pos_ == in_.size()) refuse("\\ at the end", "a character after it");
    const char c = in_[pos_++];
    const auto as_set = [&](std::string_view inside) {
      out_ += in_set ? std::string(inside) : "[" + std::string(inside) + "]";
    };
    switch (c) {
      case 's': return as_set(kSpaces);
      case 'S': return as_set(kOtherThanSpaces);
      case 'd': out_ += R"(\p{Nd})"; return;
      case 'D': out_ += R"(\P{Nd})"; return;
      case 'r': return code_point('\r');
      case 'n': return code_point('\n');
      case 't': return code_point('\t');
      case 'f': return code_point('\f');
      case 'v': return code_point('\v');
      case 'p':
      case 'P': return property(start, c == 'P');
      case 'u': return code_point(hex(4, 4));
      case 'x':
        if (at("{")) {
          pos_++;
          const uint32_t value = hex(8, 1);
          if (!at("}")) refuse_here("character code");
          pos_++;
          return code_point(value);
        }
        if (const uint32_t value = hex(2, 1); value < 0x80) return code_point(value);
        break;  // a byte of a character
      case 'A':
        if (!in_set) {
          out_ += R"(\A)";
          return;
        }
        break;
      case 'z':
        if (!in_set) {
          out_ += R"(\z)";
          return;
        }
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x80 && !is_alnum(c))
          return code_point(static_cast<uint8_t>(c));
    }
    pos_ = start;
    refuse_here("escape");
  }

  void property(size_t start, bool negated) {
    const size_t end = in_.find('}', pos_);
    if (!at("{") || end == std::string_view::npos) {
      pos_ = start;
      refuse_here("property");
    }
    std::string_view name = in_.substr(pos_ + 1, end - pos_ - 1);
    if (name.starts_with("^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const bool category =
        std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
    if (!category &&
        std::find(std::begin(kScripts), std::end(kScripts), name) == std::end(kScripts)) {
      refuse("property \\p{" + std::string(name.substr(0, 40)) + "}",
             "a general category or a script that riffle knows");
    }
    out_ += negated ? "\\P{" : "\\p{";
    if (!category) out_ += "sc:";  // without it PCRE2 means script extensions
    out_ += std::string(name) + "}";
    pos_ = end + 1;
  }

  void set() {
    out_ += '[';
    pos_++;
    if (at("^")) {
      out_ += '^';
      pos_++;
    }
    if (at("]")) refuse_here("empty class");
    const size_t first = pos_;
    while (true) {
      if (pos_ >= in_.size()) refuse("a class without end", "]");
      const char c = in_[pos_];
      if (c == ']') break;
      if (c == '\\') escape(true);
      else if (c == '[') refuse_here("class in a class");
      else if (at("&&")) refuse_here("intersection of classes");
      else if (c == '-') {
        out_ += at("-]") || pos_ == first ? "\\-" : "-";
        pos_++;
      } else literal(c);
    }
    out_ += ']';
    pos_++;
  }

  void group() {
    static constexpr std::string_view kKinds[] = {"(?:",  "(?i:", "(?=", "(?!",
                                                  "(?<=", "(?<!", "(?>"};
    for (const std::string_view kind : kKinds) {
      if (!at(kind)) continue;
      out_ += kind;
      pos_ += kind.size();
      return;
    }
    if (at("(?") || at("(*")) refuse_here("group");
    out_ += "(?:";
    pos_++;
  }

  // {n}, {n,}, {n,m}, {,m}. Characters after it mean different things to the two libraries.
  void repeat() {
    const size_t start = pos_++;
    const auto number = [&]() -> long {
      if (pos_ >= in_.size() || !is_digit(in_[pos_])) return -1;
      unsigned n = 0;
      for (; pos_ < in_.size() && is_digit(in_[pos_]); pos_++)
        n = std::min(n * 10 + static_cast<unsigned>(in_[pos_] - '0'), 1u << 20);
      return n;
    };
    const long least = number();
    long most = least;
    const bool range = at(",");
    if (range) {
      pos_++;
      most = number();
    }
    const bool ends = at("}");
    if (ends) pos_++;
    if (!ends || (least < 0 && most < 0) || (most >= 0 && least > most) || at("?") || at("+") ||
        at("*") || at("{")) {
      pos_ = start;
      refuse_here("repeat");
    }
    if (std::max(least, most) > static_cast<long>(kMaxRepeat)) {
      refuse("repeat count " + std::to_string(std::max(least, most)),
             "at most " + std::to_string(kMaxRepeat));
    }
    out_ += "{" + std::to_string(std::max(least, 0l)) + (range ? "," : "") +
            (range && most >= 0 ? std::to_string(most) : "") + "}";
  }

  std::string_view in_;
  const std::string &file_, &field_;
  std::string out_;
  size_t pos_ = 0;
};

}  // namespace

struct SplitPattern::Code {
  pcre2_code* code = nullptr;
  bool known = false, jit = false;
  std::string file, field;
  ~Code() { pcre2_code_free(code); }
};

std::shared_ptr<const SplitPattern::Code> SplitPattern::compile(const std::string& translated,
                                                                bool known, const std::string& file,
                                                                const std::string& field) {
  auto out = std::make_shared<Code>();
  out->known = known;
  out->file = file;
  out->field = field;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context, 4 * kMaxNesting);
  // Without automatic possessification an unknown pattern's steps are all counted by the match
  // limit.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY |
                           (known ? 0u : PCRE2_NO_AUTO_POSSESS | PCRE2_USE_OFFSET_LIMIT);
  int error;
  size_t offset;
  out->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            options, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (out->code == nullptr && error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (out->code == nullptr) {
    std::array<PCRE2_UCHAR, 160> text{};
    pcre2_get_error_message(error, text.data(), text.size());
    unsupported(file, field,
                "\"" + printable(translated, 120) +
                    "\", which PCRE2 refuses: " + reinterpret_cast<const char*>(text.data()),
                "a regular expression");
  }
  // Without machine code for this CPU the interpreter matches.
  if (known) out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
  return out;
}

SplitPattern::SplitPattern(std::string_view pattern, const std::string& file,
                           const std::string& field) {
  static constexpr std::string_view kKnown[] = {kGpt2Pattern,
                                                kLlama3Pattern,
                                                kQwen2Pattern,
                                                kQwen35Pattern,
                                                kCasedPattern,
                                                kTekkenPattern,
                                                kDigitPattern,
                                                kDigitsPattern,
                                                kLineEndPattern,
                                                kCasedLettersPattern,
                                                kWidePunctuationPattern,
                                                kTrailingSpacePattern,
                                                kHanHangulPattern,
                                                kSpacedLettersPattern,
                                                kSpacedPunctuationPattern,
                                                kPunctuationPattern,
                                                kThreeDigitsPattern,
                                                kExaoneMoePattern,
                                                kUpToThreeDigitsPattern,
                                                kHanKanaPattern,
                                                kHunyuanPattern,
                                                kLinesPattern,
                                                kDigitGroupsPattern};
  const bool known = std::find(std::begin(kKnown), std::end(kKnown), pattern) != std::end(kKnown);
  // If the pattern were tried at every space of a run that does not end the text, it would take
  // quadratic time. If it matches at one of them, it also matches at the first.
  const std::string_view linear =
      pattern == kTrailingSpacePattern ? std::string_view(R"((?<!\s)\s+$)") : pattern;
  code_ = compile(pattern == kDigitGroupsPattern ? std::string(kDigitGroups)
                                                 : Translator(linear, file, field).run(),
                  known, file, field);
  text_ = pattern;
}

SplitPattern SplitPattern::literal(std::string_view text, const std::string& file,
                                   const std::string& field) {
  if (text.empty() || text.size() > kMaxPatternBytes) {
    unsupported(file, field, std::to_string(text.size()) + " bytes",
                "1 to " + std::to_string(kMaxPatternBytes));
  }
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x80 || is_alnum(c)) escaped += c;
    else escaped += format("\\x{%x}", byte);
  }
  return SplitPattern(compile(escaped, true, file, field));
}

struct SplitPattern::Scratch::State {
  std::shared_ptr<const Code> code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::chrono::steady_clock::duration spent{};  // by an unknown pattern
  double allowed = 0;                           // seconds; text adds to it
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack) pcre2_jit_stack_free(stack);
  }
};

SplitPattern::Scratch::Scratch(const SplitPattern& pattern) : state_(std::make_unique<State>()) {
  state_->code = pattern.code_;
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  if (pattern.code_->jit) {
    state_->stack = pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
    if (state_->stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
  }
  pcre2_set_heap_limit(state_->context, kHeapKiB);
  state_->allowed = kSecondsBeside;
}
SplitPattern::Scratch::Scratch(Scratch&&) noexcept = default;
SplitPattern::Scratch::~Scratch() = default;

SplitPattern::Matches::Matches(Scratch& scratch, std::string_view text)
    : scratch_(&scratch), text_(text) {
  scratch.state_->allowed += kSecondsPerByte * static_cast<double>(text.size());
}

// Finds the first match at or after from. Returns PCRE2's positive count, or PCRE2_ERROR_NOMATCH.
int SplitPattern::Matches::search(size_t from) const {
  Scratch::State& s = *scratch_->state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data());
  const auto match = [&] {
    return pcre2_match(s.code->code, subject, text_.size(), from, PCRE2_NO_UTF_CHECK, s.data,
                       s.context);
  };
  const auto give_up = [&](const std::string& why) {
    unsupported(s.code->file, s.code->field, "a regular expression that " + why + " on this text",
                "one that matches in time and memory in proportion to the text");
  };
  if (s.code->known) {
    pcre2_set_match_limit(s.context, UINT32_MAX);
    const int rc = match();
    if (rc > 0 || rc == PCRE2_ERROR_NOMATCH) return rc;
    if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    give_up(format("ends with PCRE2 error %d", rc));
  }
  uint32_t limit = kFirstMatchLimit;
  while (true) {
    pcre2_set_match_limit(s.context, limit);
    pcre2_set_offset_limit(s.context, from + kStartsAtOnce);
    const auto begin = std::chrono::steady_clock::now();
    const int rc = match();
    s.spent += std::chrono::steady_clock::now() - begin;
    if (rc > 0) return rc;
    if (rc == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (std::chrono::duration<double>(s.spent).count() > s.allowed) give_up("takes too long");
    if (rc == PCRE2_ERROR_NOMATCH) {
      // No match begins between here and the limit.
      if (text_.size() - from <= kStartsAtOnce) return rc;
      from += kStartsAtOnce + 1;
      while (from < text_.size() && (static_cast<uint8_t>(text_[from]) & 0xC0) == 0x80) from++;
      limit = kFirstMatchLimit;
    } else if (rc == PCRE2_ERROR_MATCHLIMIT && limit < kMaxMatchLimit) {
      limit *= 8;
    } else {
      give_up(rc == PCRE2_ERROR_MATCHLIMIT  ? std::string("takes too many steps")
              : rc == PCRE2_ERROR_HEAPLIMIT ? std::string("takes too much memory")
                                            : format("ends with PCRE2 error %d", rc));
    }
  }
}

bool SplitPattern::Matches::next(size_t* begin, size_t* end) {
  while (from_ <= text_.size()) {
    if (search(from_) < 0) {
      from_ = text_.size() + 1;
      break;
    }
    const size_t* found = pcre2_get_ovector_pointer(scratch_->state_->data);
    *begin = found[0];
    *end = found[1];
    if (*begin == *end && *end == last_end_) {  // or the search would stay where it is
      from_ = *end + 1;
      while (from_ < text_.size() && (static_cast<uint8_t>(text_[from_]) & 0xC0) == 0x80) from_++;
      continue;
    }
    from_ = last_end_ = *end;
    return true;
  }
  return false;
}

}  // namespace riffle
