#include "engine/dry.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"
#include "util/settings.h"

namespace riffle {
namespace {

constexpr const char* kBreakers[] = {"\n", ":", "\"", "*"};
// A logit that falls by this has probability 0, and several such penalties stay finite.
constexpr double kMostPenalty = 1e30;

}  // namespace

void check_dry(const Sampling& s) {
  check_answer_setting("sampling.dry_multiplier", s.dry_multiplier);
  check_answer_setting("sampling.dry_base", s.dry_base);
  check_answer_setting("sampling.dry_allowed_length", s.dry_allowed_length);
  check_answer_setting("sampling.dry_penalty_last_n", s.dry_penalty_last_n);
  if (!s.dry_sequence_breakers) return;
  for (size_t i = 0; i < s.dry_sequence_breakers->size(); ++i)
    if ((*s.dry_sequence_breakers)[i].empty())
      fail(RIFFLE_BAD_ARGUMENT, "dry_sequence_breakers[%zu] is empty, expected a text", i);
}

Dry::Dry(const Sampling& s, std::span<const int32_t> prompt, const Tokenizer* tokenizer)
    : multiplier_(s.dry_multiplier),
      base_(s.dry_base),
      allowed_length_(s.dry_allowed_length),
      last_n_(s.dry_penalty_last_n),
      tokenizer_(tokenizer) {
  if (!on()) return;
  if (tokenizer && s.dry_sequence_breakers) breakers_ = *s.dry_sequence_breakers;
  else if (tokenizer) breakers_.assign(std::begin(kBreakers), std::end(kBreakers));
  for (const std::string& b : breakers_) longest_breaker_ = std::max(longest_breaker_, b.size());
  if (last_n_ > 0 && prompt.size() > static_cast<size_t>(last_n_))
    prompt = prompt.last(static_cast<size_t>(last_n_));
  tokens_.assign(prompt.begin(), prompt.end());
  while (since_breaker_ < tokens_.size() && !ends_breaker(tokens_.size() - 1 - since_breaker_))
    ++since_breaker_;
}

void Dry::take(int32_t token) {
  if (!on()) return;
  // Drops half of the tokens at once, so that moving the others costs little per token.
  if (last_n_ > 0 && tokens_.size() >= 2 * static_cast<size_t>(last_n_))
    tokens_.erase(tokens_.begin(), tokens_.end() - last_n_);
  tokens_.push_back(token);
  since_breaker_ = ends_breaker(tokens_.size() - 1) ? 0 : since_breaker_ + 1;
}

std::string Dry::text_of(int32_t token) const {
  const char* const piece = tokenizer_->piece(token);
  if (!piece) return {};
  std::string text = tokenizer_->bytes(token);
  return text.empty() ? piece : text;  // a control token has no text but its name
}

bool Dry::has_breaker(int32_t token) const {
  if (breakers_.empty()) return false;
  const std::string text = text_of(token);
  return std::any_of(breakers_.begin(), breakers_.end(),
                     [&](const std::string& b) { return text.find(b) != text.npos; });
}

bool Dry::ends_breaker(size_t at) const {
  if (breakers_.empty()) return false;
  std::string text = text_of(tokens_[at]);
  const size_t own = text.size();
  while (text.size() - own + 1 < longest_breaker_ && at > 0) text.insert(0, text_of(tokens_[--at]));
  const size_t before = text.size() - own;
  // A breaker that begins any earlier would end before the token.
  return own > 0 && std::any_of(breakers_.begin(), breakers_.end(), [&](const std::string& b) {
           return text.find(b, before - std::min(before, b.size() - 1)) != text.npos;
         });
}

// The Z algorithm on the tokens from the last to the first: the lengths of all repetitions of their
// end, in one pass. Lengths count only tokens since the last breaker, so no more lengths are kept.
std::unordered_map<int32_t, float> Dry::penalties() const {
  std::unordered_map<int32_t, float> penalties;
  const size_t n = last_n_ < 0 ? tokens_.size()
                               : std::min(tokens_.size(), static_cast<size_t>(last_n_)),
               most = std::min(n, since_breaker_), allowed = static_cast<size_t>(allowed_length_);
  if (most < allowed) return penalties;
  const auto from_end = [&](size_t i) { return tokens_[tokens_.size() - 1 - i]; };
  std::unordered_map<int32_t, size_t> longest;
  std::vector<size_t> lengths(most);  // length of the repetition that ends i tokens before the last
  size_t begin = 0, end = 0;          // the repetition that reaches back the farthest
  for (size_t i = 1; i < n; ++i) {
    size_t length = i < end ? std::min(lengths[i - begin], end - i) : 0;
    if (i + length >= end) {
      while (length < most && i + length < n && from_end(length) == from_end(i + length)) ++length;
      begin = i, end = i + length;
    }
    if (i < most) lengths[i] = length;
    if (length < allowed) continue;
    size_t& known = longest[from_end(i - 1)];
    known = std::max(known, length);
  }
  for (const auto& [token, length] : longest) {
    if (has_breaker(token)) continue;
    const double penalty =
        multiplier_ * std::pow(double{base_}, static_cast<double>(length - allowed));
    penalties[token] = static_cast<float>(std::min(penalty, kMostPenalty));
  }
  return penalties;
}

}  // namespace riffle
