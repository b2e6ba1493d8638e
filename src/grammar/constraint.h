// Applies a grammar to one answer, token by token, including its reasoning.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace riffle::grammar {

class Constraint {
 public:
  // space: whether the first token may begin with white space that the grammar does not allow. In
  // many vocabularies the first word begins with a space. A token of only white space needs to be
  // allowed by the grammar itself. end_tokens: whether end tokens may end the answer where it is
  // complete. If false, they are never allowed.
  Constraint(std::shared_ptr<const Grammar> grammar, bool space, ReasoningRule reasoning,
             bool end_tokens);

  // Takes text of the prompt that the answer continues. Requires: no token has been taken yet; the
  // constraint was made with space false and reasoning NONE. Returns false if the grammar does not
  // allow the text.
  bool take_begun(std::string_view text) { return matcher_.accept(text); }
  // Tells whether the next token, with this text, is the first one and begins with white space that
  // the grammar does not allow.
  bool skips_space(std::string_view text) const {
    return spaced_ && !text.empty() && !Matcher(matcher_).accept(text);
  }

  // Sets the bits of the tokens that may come next and clears the others. Returns false if there
  // are none.
  bool allowed(std::span<uint32_t> mask);
  // Takes a token other than an end token. text: the text that the token adds to the answer.
  // Returns false if the grammar does not allow it.
  bool take(int32_t token, std::string_view text);
  // Returns true if it is known without a mask that no token may come next. After false, `allowed`
  // decides.
  bool over() const { return phase_ == Phase::TEXT && matcher_.over(end_tokens_); }
  // Tells whether the answer may end here.
  bool complete() const { return phase_ != Phase::REASONING && matcher_.complete(); }
  size_t mask_words() const { return matcher_.grammar().tokens().mask_words(); }

 private:
  // BEFORE and REASONING are for tags that are control tokens; matcher_ handles tags of text.
  enum class Phase { BEFORE, REASONING, TEXT };

  bool allowed_text(std::span<uint32_t> mask);
  bool ends_reasoning(int32_t token);

  std::shared_ptr<const Grammar> grammar_;
  Matcher matcher_;
  std::optional<Matcher> spaced_;  // before the first token: with white space in front
  Phase phase_ = Phase::TEXT;
  bool end_tokens_;
  std::vector<int32_t> recent_;  // tokens of the reasoning that may belong to its end tag
};

}  // namespace riffle::grammar
