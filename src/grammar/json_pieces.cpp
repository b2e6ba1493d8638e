#include "grammar/json_pieces.h"

#include <algorithm>
#include <map>

#include "grammar/reader.h"
#include "util/json.h"

namespace riffle::grammar {
namespace {

// Characters that need no escape in a string.
const std::vector<CodeRange> kPlain = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, kLastCode}};

std::string utf8(uint32_t code) {
  std::string out;
  append_utf8(code, &out);
  return out;
}

}  // namespace

JsonPieces::JsonPieces(Expressions* e) : e_(*e) {
  const ExprId indent = e_.repeat(e_.chars({{' ', ' '}, {'\t', '\t'}}), 0, kMostIndent);
  space_ = e_.rule(e_.add_rule(
      "space", e_.optional(e_.choice({e_.text(" "), e_.sequence({e_.text("\n"), indent})}))));
  comma_ = e_.sequence({e_.text(","), space_});
  quote_ = e_.text("\"");
  const auto hex = [&](const char* digits) {
    std::vector<CodeRange> ranges;
    for (; *digits; ++digits)
      ranges.push_back({static_cast<uint32_t>(*digits), static_cast<uint32_t>(*digits)});
    return e_.chars(std::move(ranges));
  };
  const ExprId any = hex("0123456789abcdefABCDEF"), d = hex("dD");
  // A character beyond U+FFFF is a pair of surrogates; half a pair is not a character.
  const ExprId no_surrogate = e_.choice({e_.sequence({hex("0123456789abcefABCEF"), any, any, any}),
                                         e_.sequence({d, hex("01234567"), any, any})});
  const ExprId pair =
      e_.sequence({d, hex("89abAB"), any, any, e_.text("\\u"), d, hex("cdefCDEF"), any, any});
  any_char_ = e_.choice(
      {e_.chars(kPlain),
       e_.sequence({e_.text("\\"),
                    e_.choice({hex("\"\\/bfnrt"),
                               e_.sequence({e_.text("u"), e_.choice({no_surrogate, pair})})})})});
}

ExprId JsonPieces::string(uint32_t min, uint32_t max) {
  return e_.sequence({quote_, e_.repeat(any_char_, min, max), quote_});
}

std::string JsonPieces::key(const std::string& text) { return "\"" + json_string(text) + "\""; }

ExprId JsonPieces::plain_chars(std::vector<CodeRange> ranges) {
  std::vector<std::string> escapes;
  const auto escape = [&](uint32_t code) {
    for (const CodeRange& r : ranges)
      if (r.low <= code && code <= r.high) escapes.push_back(json_string(utf8(code)));
  };
  for (uint32_t code = 0; code < 0x20; ++code) escape(code);
  escape('"');
  escape('\\');
  const ExprId plain = e_.chars(common_ranges(ranges, kPlain));
  if (escapes.size() <= 2) return e_.choice({plain, e_.words(std::move(escapes))});
  // Many classes contain nearly all escapes, so their sets of escapes are equal and shared.
  const auto known = escapes_.find(escapes);
  if (known != escapes_.end()) return e_.choice({plain, e_.rule(known->second)});
  const uint32_t rule = e_.add_rule("escape", e_.words(escapes));
  escapes_.emplace(std::move(escapes), rule);
  return e_.choice({plain, e_.rule(rule)});
}

RegexOptions JsonPieces::regex_options() {
  return {true, [this](std::vector<CodeRange> ranges) { return plain_chars(std::move(ranges)); }};
}

ExprId JsonPieces::matching(const Regex& regex) {
  return e_.sequence({quote_, regex.expr, quote_});
}

// Builds a trie of the texts. Where a text departs from all of them, anything may follow.
ExprId JsonPieces::other_than(std::vector<std::string> texts) {
  const std::vector<CodeRange> all = {{0, kLastCode}};
  const ExprId any = e_.rule(
      e_.add_rule("key", e_.sequence({e_.repeat(plain_chars(all), 0, kUnlimited), quote_})));
  struct Node {
    std::map<uint32_t, size_t> next;
    bool is_text = false;
  };
  std::vector<Node> nodes(1);
  for (const std::string& text : texts) {
    size_t at = 0;
    for (Reader r(text); !r.at_end();) {
      const uint32_t code = r.code_point();
      auto it = nodes[at].next.find(code);
      if (it == nodes[at].next.end()) {
        nodes.emplace_back();
        it = nodes[at].next.emplace(code, nodes.size() - 1).first;
      }
      at = it->second;
    }
    nodes[at].is_text = true;
  }
  // Built from the last node to the first. Each is the text that may follow, with the closing
  // quote.
  std::vector<ExprId> rest(nodes.size());
  for (size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    std::vector<CodeRange> known;
    std::vector<ExprId> ways;
    for (const auto& [code, next] : node.next) {
      known.push_back({code, code});
      ways.push_back(e_.sequence({plain_chars({{code, code}}), rest[next]}));
    }
    ways.push_back(
        e_.sequence({plain_chars(inverted_ranges(normal_ranges(std::move(known)))), any}));
    if (!node.is_text) ways.push_back(quote_);
    const ExprId expr = e_.choice(std::move(ways));
    // A rule per node, so that long names do not make deep expressions.
    rest[i] = e_.rule(e_.add_rule("key", expr));
  }
  return e_.sequence({quote_, rest[0]});
}

}  // namespace riffle::grammar
