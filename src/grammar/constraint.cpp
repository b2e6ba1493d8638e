#include "grammar/constraint.h"

#include <algorithm>

namespace riffle::grammar {
namespace {

// This file handles tags that are control tokens; the matcher handles tags of text.
Before inside_matcher(const Grammar& grammar, bool space, ReasoningRule reasoning) {
  const bool here = !grammar.reasoning().end_ids.empty();
  return {space, here ? ReasoningRule::NONE : reasoning};
}

}  // namespace

Constraint::Constraint(std::shared_ptr<const Grammar> grammar, bool space, ReasoningRule reasoning,
                       bool end_tokens)
    : grammar_(grammar),
      matcher_(grammar, inside_matcher(*grammar, false, reasoning)),
      end_tokens_(end_tokens) {
  if (space && reasoning != ReasoningRule::BEGUN)
    spaced_.emplace(grammar, inside_matcher(*grammar, true, reasoning));
  const ReasoningTokens& marks = grammar->reasoning();
  if (reasoning == ReasoningRule::NONE || marks.end_ids.empty()) return;
  // A tag of several tokens is a header (gpt-oss, Muse Glimmer). Such models begin every answer
  // with one, so the grammar waits for the header of the answer, which the prompt may have begun.
  const bool begun = reasoning == ReasoningRule::BEGUN || marks.begin_ids.size() != 1;
  phase_ = begun ? Phase::REASONING : Phase::BEFORE;
  if (reasoning == ReasoningRule::ALLOWED)
    recent_.assign(marks.end_tail.begin(),
                   marks.end_tail.begin() + static_cast<std::ptrdiff_t>(marks.prompted));
}

bool Constraint::allowed(std::span<uint32_t> mask) {
  const TokenTries& tokens = matcher_.grammar().tokens();
  const auto set = [&](int32_t token, bool on) {
    if (token < 0 || token >= tokens.n_tokens()) return;
    uint32_t& word = mask[static_cast<size_t>(token) / 32];
    const uint32_t bit = uint32_t{1} << (token % 32);
    word = on ? word | bit : word & ~bit;
  };
  if (phase_ == Phase::REASONING) {
    std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    for (const int32_t token : tokens.end_tokens()) set(token, false);
    return true;
  }
  const bool any = allowed_text(mask);
  if (phase_ == Phase::TEXT) return any;
  set(matcher_.grammar().reasoning().begin_ids[0], true);
  return true;
}

bool Constraint::allowed_text(std::span<uint32_t> mask) {
  bool any = matcher_.allowed(end_tokens_, mask);
  if (!spaced_) return any;
  std::vector<uint32_t> spaced(mask.size()), white(mask.size());
  spaced_->allowed(false, spaced);
  Matcher::white(grammar_).allowed(false, white);
  for (size_t i = 0; i < mask.size(); ++i) {
    mask[i] |= spaced[i] & ~white[i];
    any = any || mask[i] != 0;
  }
  return any;
}

bool Constraint::take(int32_t token, std::string_view text) {
  const ReasoningTokens& marks = matcher_.grammar().reasoning();
  if (text.empty()) text = matcher_.grammar().tokens().marked(token);
  if (phase_ == Phase::REASONING) {
    if (!ends_reasoning(token)) return true;
    phase_ = Phase::TEXT;
    matcher_ = Matcher(grammar_, {true, ReasoningRule::NONE});
    return true;
  }
  if (phase_ == Phase::BEFORE) {
    if (token == marks.begin_ids[0]) {
      phase_ = Phase::REASONING;
      spaced_.reset();
      return true;
    }
    phase_ = Phase::TEXT;
  }
  if (skips_space(text)) matcher_ = *spaced_;
  spaced_.reset();
  return matcher_.grammar().tokens().holds(token) && matcher_.accept(text);
}

// Tells whether the end tag ends with this token: the last tokens must equal the tag's, from its
// last but one control token on. A header's own name begins at that token. Text between that name
// and the end of the header is not compared.
bool Constraint::ends_reasoning(int32_t token) {
  const std::vector<int32_t>& end = matcher_.grammar().reasoning().end_ids;
  if (end.size() == 1) return token == end[0];
  const std::vector<int32_t>& tail = matcher_.grammar().reasoning().end_tail;
  if (token == tail[0]) recent_.clear();
  if (recent_.size() < 64) recent_.push_back(token);
  if (token != tail.back() || recent_.size() < tail.size()) return false;
  return std::equal(tail.begin(), tail.end() - 1, recent_.begin());
}

}  // namespace riffle::grammar
