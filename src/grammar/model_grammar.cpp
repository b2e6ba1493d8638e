#include "grammar/model_grammar.h"

#include <algorithm>

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

}  // namespace

std::shared_ptr<const TokenTries> token_tries(const Model& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  const std::vector<int32_t> end_tokens(model.config.eos_ids.begin(), model.config.eos_ids.end());
  // The unknown piece stands for any text, so a grammar cannot decide whether to allow it.
  const auto bytes = [&](int32_t id) {
    const char* piece = tokenizer.piece(id);
    return piece && std::string_view(piece) == "<unk>" ? std::string() : tokenizer.bytes(id);
  };
  return std::make_shared<TokenTries>(drawable_ids(model), bytes, end_tokens);
}

std::shared_ptr<const Grammar> compile_grammar(const Model& model,
                                               std::shared_ptr<const TokenTries> tokens,
                                               riffle_grammar_kind kind, std::string_view text) {
  return compile_grammar(std::move(tokens), reasoning_tokens(model), kind, text);
}

std::shared_ptr<const Grammar> compile_grammar(std::shared_ptr<const TokenTries> tokens,
                                               ReasoningTokens reasoning, riffle_grammar_kind kind,
                                               std::string_view text) {
  if (text.size() > kLongestText)
    fail(RIFFLE_UNSUPPORTED, "the text has %zu bytes, expected at most %zu MB", text.size(),
         kLongestText >> 20);
  Expressions e;
  uint32_t root = 0;
  switch (kind) {
    case RIFFLE_GRAMMAR_GBNF: root = read_gbnf(text, &e); break;
    case RIFFLE_GRAMMAR_JSON_SCHEMA: root = read_json_schema(text, &e); break;
    case RIFFLE_GRAMMAR_REGEX: root = e.add_rule(kRegexRule, read_regex(text, {}, &e).expr); break;
    default:
      fail(RIFFLE_BAD_ARGUMENT, "grammar kind is %d, expected 0 to 2", static_cast<int>(kind));
  }
  return std::make_shared<const Grammar>(std::move(e), root, std::move(tokens),
                                         std::move(reasoning));
}

}  // namespace riffle::grammar
