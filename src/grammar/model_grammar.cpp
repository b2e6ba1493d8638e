#include "grammar/model_grammar.h"

#include <algorithm>
#include <map>

#include "chat/chat_template.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

// Longer texts are refused before they are read.
constexpr size_t kLongestText = size_t{16} << 20;

ReasoningTokens reasoning_tokens(const Model& model) {
  ReasoningTokens out;
  if (!model.chat) return out;
  const ReasoningMarks& marks = model.chat->reasoning_marks();
  if (marks.begin.empty() || marks.end.empty()) return out;
  const auto ids_of = [&](const std::string& mark) {
    return model.tokenizer->encode(mark, false, true);
  };
  const auto is_control = [&](int32_t id) { return model.tokenizer->bytes(id).empty(); };
  const std::vector<int32_t> begin = ids_of(marks.begin), end = ids_of(marks.end);
  if (std::none_of(begin.begin(), begin.end(), is_control) &&
      std::none_of(end.begin(), end.end(), is_control)) {
    out.begin = marks.begin;
    out.end = marks.end;
    return out;
  }
  out.begin_ids = begin;
  out.end_ids = end;
  size_t tail = end.size() - 1;
  while (tail > 0 && !is_control(end[tail - 1])) --tail;
  out.end_tail.assign(end.begin() + static_cast<std::ptrdiff_t>(tail > 0 ? tail - 1 : 0),
                      end.end());
  // If the tag begins with text, the header's beginning is in the prompt (Muse Glimmer).
  if (!is_control(begin[0])) {
    const auto own = std::find(out.end_tail.begin(), out.end_tail.end(), begin[0]);
    if (own != out.end_tail.end()) out.prompted = static_cast<size_t>(own - out.end_tail.begin());
  }
  return out;
}

// Returns 'a' for a printable byte, 0x0a for another.
std::string shown_byte(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return code > 0x20 && code < 0x7f ? format("'%c'", byte) : format("0x%02x", code);
}

}  // namespace

std::shared_ptr<const TokenTries> token_tries(const Model& model) {
  return marked_tries(model, {});
}

std::shared_ptr<const TokenTries> marked_tries(const Model& model,
                                               std::span<const std::string_view> markers) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const std::vector<int32_t> end_tokens(model.config.eos_ids.begin(), model.config.eos_ids.end());
  std::map<int32_t, std::string> marked;
  bool only_control = false;
  for (const std::string_view marker : markers) {
    const bool only = marker.starts_with(kOnlyControl);
    only_control = only_control || only;
    if (const int32_t id = tokenizer.control_id(marker.substr(only ? 1 : 0)); id >= 0)
      marked.emplace(id, marker);
  }
  // The unknown piece stands for any text, so a grammar cannot decide whether to allow it.
  const auto bytes = [&](int32_t id) {
    if (const auto marker = marked.find(id); marker != marked.end()) return marker->second;
    const char* piece = tokenizer.piece(id);
    const bool unknown = piece && std::string_view(piece) == "<unk>";
    std::string text = unknown ? std::string() : tokenizer.bytes(id);
    if (only_control && text.find(kOnlyControl) != text.npos) text.clear();
    return text;
  };
  return std::make_shared<TokenTries>(drawable_ids(model), bytes, end_tokens, marked);
}

uint32_t read_grammar(riffle_grammar_kind kind, std::string_view text, Expressions* out) {
  if (text.size() > kLongestText)
    fail(RIFFLE_UNSUPPORTED, "the text has %zu bytes, expected at most %zu MB", text.size(),
         kLongestText >> 20);
  switch (kind) {
    case RIFFLE_GRAMMAR_GBNF: return read_gbnf(text, out);
    case RIFFLE_GRAMMAR_JSON_SCHEMA: return read_json_schema(text, out);
    case RIFFLE_GRAMMAR_REGEX: return out->add_rule(kRegexRule, read_regex(text, {}, out).expr);
  }
  fail(RIFFLE_BAD_ARGUMENT, "grammar kind is %d, expected 0 to 2", static_cast<int>(kind));
}

std::shared_ptr<const Grammar> compiled_grammar(const Model& model,
                                                std::shared_ptr<const TokenTries> tokens,
                                                Expressions expressions, uint32_t rule) {
  return std::make_shared<const Grammar>(std::move(expressions), rule, std::move(tokens),
                                         reasoning_tokens(model));
}

std::shared_ptr<const Grammar> compile_grammar(const Model& model,
                                               std::shared_ptr<const TokenTries> tokens,
                                               riffle_grammar_kind kind, std::string_view text) {
  return compile_grammar(std::move(tokens), reasoning_tokens(model), kind, text);
}

std::shared_ptr<const Grammar> compile_grammar(std::shared_ptr<const TokenTries> tokens,
                                               ReasoningTokens reasoning, riffle_grammar_kind kind,
                                               std::string_view text) {
  Expressions e;
  const uint32_t root = read_grammar(kind, text, &e);
  return std::make_shared<const Grammar>(std::move(e), root, std::move(tokens),
                                         std::move(reasoning));
}

std::shared_ptr<const riffle_grammar> continued(const riffle_grammar& grammar,
                                                std::string_view text) {
  auto out = std::make_shared<riffle_grammar>(grammar);
  out->begun += text;
  Matcher matcher(out->grammar, {});
  const std::string_view begun = out->begun;
  for (size_t i = 0; i < begun.size(); ++i)
    if (!matcher.accept(begun.substr(i, 1)))
      fail(RIFFLE_BAD_ARGUMENT,
           "text: found %s at byte %zu, which the grammar does not allow there; expected the "
           "beginning of a text of the grammar",
           shown_byte(begun[i]).c_str(), i + 1 - std::min(i, grammar.begun.size()));
  return out;
}

}  // namespace riffle::grammar
