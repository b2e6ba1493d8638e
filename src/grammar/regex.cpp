#include "grammar/regex.h"

#include <algorithm>

#include "grammar/reader.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

constexpr int kDeepest = 200;  // nesting of groups
constexpr uint64_t kNoLimit = UINT64_MAX;

uint64_t times(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kNoLimit / b ? kNoLimit : a * b;
}
uint64_t plus(uint64_t a, uint64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }

using Ranges = std::vector<CodeRange>;

const Ranges kDigits = {{'0', '9'}}, kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
             kSpace = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680},
                       {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f},
                       {0x3000, 0x3000}, {0xfeff, 0xfeff}},
             kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Reading {
 public:
  Reading(std::string_view text, const RegexOptions& options, Expressions* out)
      : r_(text), options_(options), e_(*out) {}

  Regex read() {
    std::vector<Way> ways = read_ways(0);
    if (!r_.at_end()) r_.expected("no ) without its (");
    Regex all;
    all.min = kNoLimit;
    std::vector<ExprId> exprs;
    const Part any = part_of({{0, kLastCode}});
    const ExprId padding = e_.repeat(any.expr, 0, kUnlimited);
    for (Way& way : ways) {
      std::vector<ExprId> parts{way.whole.expr};
      if (options_.search && !way.begins) parts.insert(parts.begin(), padding);
      if (options_.search && !way.ends) parts.push_back(padding);
      if (parts.size() > 1) way.whole.max = kNoLimit, way.whole.repeated.reset();
      exprs.push_back(e_.sequence(std::move(parts)));
      all.min = std::min(all.min, way.whole.min);
      all.max = std::max(all.max, way.whole.max);
    }
    if (ways.size() == 1) all.repeated = ways[0].whole.repeated;
    all.expr = e_.choice(std::move(exprs));
    return all;
  }

 private:
  struct Part {
    ExprId expr = Expressions::kEmpty;
    uint64_t min = 0, max = 0;
    std::optional<ExprId> repeated;
  };
  // One alternative, and whether it begins with ^ and ends with $.
  struct Way {
    Part whole;
    bool begins = false, ends = false;
  };

  Part part_of(Ranges ranges) {
    ranges = normal_ranges(std::move(ranges));
    const ExprId expr = options_.chars ? options_.chars(ranges) : e_.chars(ranges);
    return {expr, 1, 1, expr};
  }

  std::vector<Way> read_ways(int depth) {
    if (depth > kDeepest)
      r_.fail_at(r_.position(),
                 format("found groups nested deeper than %d levels, expected at most that many",
                        kDeepest));
    std::vector<Way> ways;
    do read_way(depth, &ways);
    while (r_.skip("|"));
    return ways;
  }

  // Appends one alternative, or several if it is a group of alternatives with ^ or $.
  void read_way(int depth, std::vector<Way>* out) {
    Way way;
    std::vector<Part> parts;
    std::vector<Way> inner;  // alternatives of the only part, if it has ^ or $
    size_t inner_at = 0;
    while (!r_.at_end() && r_.peek() != '|' && r_.peek() != ')') {
      const size_t at = r_.position();
      if (r_.skip("^")) {
        if (!parts.empty() || way.ends)
          r_.fail_at(at, "found ^ inside, expected it at the beginning only");
        way.begins = true;
        continue;
      }
      if (r_.skip("$")) {
        way.ends = true;
        continue;
      }
      if (way.ends) r_.fail_at(at, "found more after $, expected $ at the end only");
      if (!inner.empty()) anchored_inside(inner_at);
      if (r_.peek() == '(') {
        std::vector<Way> ways = read_group(depth);
        const bool anchored =
            std::any_of(ways.begin(), ways.end(), [](const Way& w) { return w.begins || w.ends; });
        if (anchored) {
          if (!parts.empty()) anchored_inside(at);
          inner = ways;
          inner_at = at;
        }
        parts.push_back(read_repeat(choice_of(ways), anchored ? at : kNowhere));
      } else {
        parts.push_back(read_repeat(read_atom(), kNowhere));
      }
    }
    if (!inner.empty()) {
      for (Way& w : inner) {
        w.begins = w.begins || way.begins;
        w.ends = w.ends || way.ends;
        out->push_back(std::move(w));
      }
      return;
    }
    way.whole = sequence_of(parts);
    out->push_back(std::move(way));
  }

  [[noreturn]] void anchored_inside(size_t at) const {
    r_.fail_at(at,
               "found a group with ^ or $, expected ^ and $ at the ends of the expression only");
  }

  [[noreturn]] void back_reference(size_t at) const {
    r_.fail_at(at, "found a back reference, expected characters or a class; repeat the group");
  }

  static constexpr size_t kNowhere = SIZE_MAX;

  Part choice_of(const std::vector<Way>& ways) {
    Part out = ways[0].whole;
    std::vector<ExprId> exprs;
    for (const Way& w : ways) {
      exprs.push_back(w.whole.expr);
      out.min = std::min(out.min, w.whole.min);
      out.max = std::max(out.max, w.whole.max);
    }
    if (ways.size() > 1) out.repeated.reset();
    out.expr = e_.choice(std::move(exprs));
    return out;
  }

  Part sequence_of(const std::vector<Part>& parts) {
    if (parts.size() == 1) return parts[0];
    Part out;
    std::vector<ExprId> exprs;
    for (const Part& p : parts) {
      exprs.push_back(p.expr);
      out.min = plus(out.min, p.min);
      out.max = plus(out.max, p.max);
    }
    out.expr = e_.sequence(std::move(exprs));
    return out;
  }

  std::vector<Way> read_group(int depth) {
    const size_t begin = r_.position();
    r_.skip("(");
    if (r_.skip("?")) {
      if (r_.next_is("=") || r_.next_is("!") || r_.next_is("<=") || r_.next_is("<!"))
        r_.fail_at(
            begin,
            "found look-ahead or look-behind, expected a plain group ( ); list the texts that "
            "may stand here");
      if (r_.skip("<")) {
        while (!r_.at_end() && r_.peek() != '>') r_.code_point();
        if (!r_.skip(">")) r_.expected("> after the name of a group");
      } else if (!r_.skip(":")) {
        r_.expected(": or < after (?");
      }
    }
    std::vector<Way> ways = read_ways(depth + 1);
    if (!r_.skip(")")) r_.fail_at(begin, "found ( without its ), expected ) before the end");
    return ways;
  }

  // anchored: beginning of a group with ^ or $, which cannot be repeated.
  Part read_repeat(Part part, size_t anchored) {
    const size_t at = r_.position();
    uint32_t min = 0, max = kUnlimited;
    if (r_.skip("*")) {
    } else if (r_.skip("+")) {
      min = 1;
    } else if (r_.skip("?")) {
      max = 1;
    } else if (!read_limits(&min, &max)) {
      return part;
    }
    if (anchored != kNowhere) anchored_inside(anchored);
    r_.skip("?");  // not greedy
    if (r_.peek() == '*' || r_.peek() == '+' || r_.peek() == '?')
      r_.expected("no second repetition");
    if (max < min)
      r_.fail_at(at, format("found {%u,%u}, expected the smaller limit first", min, max));
    Part out;
    out.expr = e_.repeat(part.expr, min, max);
    out.min = times(part.min, min);
    out.max = max == kUnlimited ? (part.max == 0 ? 0 : kNoLimit) : times(part.max, max);
    if (part.repeated && part.min == 1 && part.max == 1) out.repeated = part.repeated;
    return out;
  }

  // Reads {2}, {2,} or {2,5}. Any other brace stands for itself.
  bool read_limits(uint32_t* min, uint32_t* max) {
    const size_t begin = r_.position();
    const auto digit = [&] { return r_.peek() >= '0' && r_.peek() <= '9'; };
    if (!r_.skip("{")) return false;
    if (digit()) {
      *min = *max = r_.number();
      if (r_.skip(",")) *max = digit() ? r_.number() : kUnlimited;
      if (r_.skip("}")) return true;
    }
    r_.go_to(begin);
    return false;
  }

  Part read_atom() {
    const size_t at = r_.position();
    if (r_.skip("[")) return part_of(read_class(at));
    if (r_.skip(".")) return part_of(inverted_ranges(kLineEnds));
    if (r_.peek() == '*' || r_.peek() == '+' || r_.peek() == '?')
      r_.expected("something to repeat before it");
    if (r_.skip("\\")) return part_of(read_escape(at, false));
    const uint32_t c = r_.code_point();
    return part_of({{c, c}});
  }

  Ranges read_class(size_t begin) {
    const bool negated = r_.skip("^");
    Ranges all;
    while (!r_.skip("]")) {
      if (r_.at_end()) r_.fail_at(begin, "found [ without its ], expected ] before the end");
      const size_t at = r_.position();
      const auto one = [&] {
        const size_t here = r_.position();
        if (r_.skip("\\")) return read_escape(here, true);
        const uint32_t c = r_.code_point();
        return Ranges{{c, c}};
      };
      Ranges low = one();
      const bool single = low.size() == 1 && low[0].low == low[0].high;
      if (r_.peek() == '-' && r_.peek(1) != ']' && r_.peek(1) != 0) {
        r_.skip("-");
        const Ranges high = one();
        if (!single || high.size() != 1 || high[0].low != high[0].high)
          r_.fail_at(at, "found a range of classes, expected a range of characters");
        if (high[0].low < low[0].low)
          r_.fail_at(at,
                     "found a range that ends before it begins, expected the smaller character "
                     "first");
        low = {{low[0].low, high[0].low}};
      }
      all.insert(all.end(), low.begin(), low.end());
    }
    all = normal_ranges(std::move(all));
    return negated ? inverted_ranges(all) : all;
  }

  // Reads an escape after its backslash.
  Ranges read_escape(size_t begin, bool in_class) {
    if (r_.at_end()) r_.expected("a character after \\");
    const char c = r_.peek();
    const auto one = [&](uint32_t code) {
      r_.code_point();
      return Ranges{{code, code}};
    };
    const auto set = [&](const Ranges& ranges, bool negated) {
      r_.code_point();
      return negated ? inverted_ranges(ranges) : ranges;
    };
    switch (c) {
      case 'd': return set(kDigits, false);
      case 'D': return set(kDigits, true);
      case 'w': return set(kWord, false);
      case 'W': return set(kWord, true);
      case 's': return set(kSpace, false);
      case 'S': return set(kSpace, true);
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'v': return one('\v');
      case 'f': return one('\f');
      case 'x': r_.skip("x"); return single(r_.hex(2), begin);
      case 'u': return read_unicode(begin);
      case 'c': {
        r_.skip("c");
        const char letter = r_.peek();
        if (!((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')))
          r_.expected("a letter after \\c");
        return one(static_cast<uint32_t>(letter) % 32);
      }
      case '0':
        if (r_.peek(1) < '0' || r_.peek(1) > '9') return one(0);
        break;
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      case 'B':
        r_.fail_at(begin, std::string("found \\") + c +
                              ", expected characters; write those next to the word");
      case 'p':
      case 'P':
        r_.fail_at(begin, std::string("found \\") + c +
                              ", expected a class such as [a-z]; list the ranges");
      case 'k': back_reference(begin);
      default: break;
    }
    if (c >= '0' && c <= '9') back_reference(begin);
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
      r_.fail_at(begin, std::string("found \\") + c + ", which is not an escape; expected " + c);
    const uint32_t code = r_.code_point();
    return {{code, code}};
  }

  Ranges single(uint32_t code, size_t begin) const {
    if (code > kLastCode || (code >= 0xd800 && code <= 0xdfff))
      r_.fail_at(begin, format("found U+%04X, expected a character", code));
    return {{code, code}};
  }

  Ranges read_unicode(size_t begin) {
    r_.skip("u");
    if (r_.skip("{")) {
      size_t digits = 0;
      while (digits < 7 && r_.peek(digits) != '}') ++digits;
      if (digits == 0 || digits == 7) r_.expected("1 to 6 hexadecimal digits and }");
      const uint32_t code = r_.hex(static_cast<int>(digits));
      r_.skip("}");
      return single(code, begin);
    }
    const uint32_t high = r_.hex(4);
    if (high >= 0xd800 && high <= 0xdbff && r_.skip("\\u")) {
      const uint32_t low = r_.hex(4);
      if (low >= 0xdc00 && low <= 0xdfff)
        return single(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), begin);
    }
    return single(high, begin);
  }

  Reader r_;
  const RegexOptions& options_;
  Expressions& e_;
};

}  // namespace

Regex read_regex(std::string_view text, const RegexOptions& options, Expressions* out) {
  return Reading(text, options, out).read();
}

}  // namespace riffle::grammar
