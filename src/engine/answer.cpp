#include "engine/answer.h"

#include <algorithm>

#include "backend/device.h"
#include "engine/logprobs.h"
#include "util/error.h"
#include "util/settings.h"

namespace riffle {

void check_generate_options(const GenerateOptions& o) {
  check_sampling(o.sampling.temperature, o.sampling.top_k, o.sampling.top_p, o.sampling.min_p);
  check_xtc({o.sampling.xtc_probability, o.sampling.xtc_threshold});
  check_penalties(o.sampling);
  check_answer_setting("generate.max_tokens", o.max_tokens);
  for (size_t i = 0; i < o.stop.size(); ++i)
    if (o.stop[i].empty()) fail(RIFFLE_BAD_ARGUMENT, "stop[%zu] is empty, expected text", i);
}

void require_room(const GenerateOptions& o, size_t n_tokens, int64_t n_ctx) {
  const int64_t all = static_cast<int64_t>(n_tokens) + o.max_tokens;
  if (!o.limit_field || all <= n_ctx) return;
  const int64_t left = n_ctx - static_cast<int64_t>(n_tokens);
  const std::string cure =
      left > 0
          ? format("%s may be at most %lld", o.limit_field, static_cast<long long>(left))
          : format("the prompt may have at most %lld tokens", static_cast<long long>(n_ctx - 1));
  fail(RIFFLE_CONTEXT_FULL,
       "the prompt has %zu tokens and %s is %d, together %lld, but the context holds %lld; %s",
       n_tokens, o.limit_field, o.max_tokens, static_cast<long long>(all),
       static_cast<long long>(n_ctx), cure.c_str());
}

Answer::Answer(const Model& model, const GenerateOptions& o, std::span<const int32_t> prompt)
    : config_(&model.config),
      n_ids_(drawable_ids(model)),
      max_tokens_(o.max_tokens),
      ignore_eos_(o.ignore_eos),
      sampler_(o.sampling.seed, o.sampling.temperature, o.sampling.top_k, o.sampling.top_p,
               o.sampling.min_p, Xtc{o.sampling.xtc_probability, o.sampling.xtc_threshold}),
      tokenizer_(model.tokenizer.get()),
      penalties_(o.sampling, prompt, tokenizer_),
      logprobs_(o.sampling.logprobs),
      top_logprobs_(o.sampling.top_logprobs),
      trimming_(o.trim_start && !o.grammar) {
  stops_ = o.stop;
  for (size_t i = 0; i < o.sampling.logit_bias.size(); ++i)
    if (o.sampling.logit_bias[i].token >= n_ids_)
      fail(RIFFLE_BAD_ARGUMENT, "logit_bias[%zu]: token is %d, expected 0 to %d", i,
           o.sampling.logit_bias[i].token, n_ids_ - 1);
  if (model.tokenizer) decoder_.emplace(*model.tokenizer, false);
  if (!o.grammar) return;
  if (o.grammar->tokenizer != tokenizer_)
    fail(RIFFLE_BAD_ARGUMENT,
         "grammar: found a grammar that was created with another model, expected one that was "
         "created with this session's model");
  const std::string& begun = o.grammar->begun;
  constraint_.emplace(o.grammar->grammar, o.trim_start && begun.empty(),
                      begun.empty() ? o.reasoning : ReasoningRule::NONE, !ignore_eos_);
  if (!begun.empty() && !constraint_->take_begun(begun))
    fail(RIFFLE_INTERNAL,
         "grammar: the text given to riffle_grammar_continue begins no text of the grammar, "
         "although that function has checked it; this is an error in riffle, please report it");
}

const SampleRequest& Answer::request(size_t i) {
  while (requests_.size() <= i) requests_.push_back(sampler_.request());
  SampleRequest& r = requests_[i];
  r.allowed = constraint_ ? masks_[i].words.data() : nullptr;
  r.changes = i < changes_.size() ? changes_[i].data() : nullptr;
  r.n_changes = i < changes_.size() ? static_cast<int32_t>(changes_[i].size()) : 0;
  return r;
}

// Finds the tokens that are penalised at the next draw. Allowed tokens are found later.
void Answer::begin_draw() {
  changes_.clear();
  if (penalties_.any()) changes_.push_back(penalties_.changes(n_ids_));
  if (constraint_ && masks_.empty()) masks_.emplace_back(constraint_->mask_words());
  for (Mask& mask : masks_) mask.found = false;
  ahead_.clear();
}

void Answer::fill_mask(size_t i) {
  Mask& mask = masks_[i];
  mask.any = (i == 0 ? *constraint_ : ahead_[i - 1]).allowed(mask.words);
  mask.found = true;
}

SampleRequest Answer::guess_request(size_t i) {
  while (requests_.size() <= i) requests_.push_back(sampler_.request());
  SampleRequest free = requests_[i];
  free.allowed = nullptr;
  free.changes = nullptr;
  free.n_changes = 0;
  return free;
}

int32_t Answer::guess(std::span<const float> logits, size_t i) {
  const size_t n = std::min<size_t>(logits.size(), n_ids_);
  return sampler_.sample(logits.data(), static_cast<int>(n), guess_request(i));
}

void Answer::find_mask(size_t i) noexcept {
  try {
    fill_mask(i);
  } catch (...) {
    std::fill(masks_[i].words.begin(), masks_[i].words.end(), 0);
  }
}

bool Answer::any_allowed() {
  if (!constraint_) return true;
  if (!masks_[0].found) fill_mask(0);
  return masks_[0].any;
}

size_t Answer::allow_ahead(std::span<const int32_t> tokens) {
  // A failed step may have left tokens that it was to compute ahead.
  ahead_.clear();
  if (changes_.size() > 1) changes_.resize(1);
  if (tokens.empty() || (!constraint_ && !penalties_.any())) return tokens.size();
  size_t n = 0;
  try {
    std::optional<grammar::Constraint> grammar = constraint_;
    std::optional<Penalties> penalties;
    if (penalties_.any()) penalties = penalties_;
    for (; n < tokens.size(); ++n) {
      const int32_t token = tokens[n];
      if (grammar) {
        if (token >= n_ids_ || config_->ends_answer(token)) break;
        if (!grammar->take(token, tokenizer_->bytes(token)) || grammar->over()) break;
        if (masks_.size() == n + 1) masks_.emplace_back(grammar->mask_words());
        masks_[n + 1].found = false;
        ahead_.push_back(*grammar);
      }
      if (penalties) {
        penalties->take(token);
        changes_.push_back(penalties->changes(n_ids_));
      }
    }
  } catch (const std::exception&) {
    // The error occurs again when a token is drawn there.
  }
  return n;
}

int64_t Answer::room_ahead() const {
  return max_tokens_ < 0 ? INT64_MAX : std::max(0, max_tokens_ - result_.n_tokens - 1);
}

std::string Answer::release(std::string fresh, bool all) {
  if (trimming_) {
    const size_t start = fresh.find_first_not_of(" \t\r\n");
    if (start == std::string::npos) return {};
    fresh.erase(0, start);
    trimming_ = false;
  }
  pending_ += fresh;
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) cut = std::min(cut, pending_.find(stop));
  if (cut != std::string::npos) {
    stopped_ = true;
    pending_.resize(cut);
    return std::move(pending_);
  }
  // Holds back the longest end of the text with which a stop string may begin.
  size_t keep = 0;
  if (!all)
    for (const std::string_view stop : stops_)
      for (size_t n = std::min(stop.size() - 1, pending_.size()); n > keep; --n)
        if (pending_.compare(pending_.size() - n, n, stop.substr(0, n)) == 0) keep = n;
  std::string out = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, out.size());
  return out;
}

static riffle_token token_of(int32_t id, const std::string& text) {
  riffle_token token{};
  token.id = id;
  token.text = text.data();
  token.text_len = text.size();
  return token;
}

void Answer::end(riffle_finish finish, const Show& show) {
  result_.finish = finish;
  if (stopped_ || !decoder_) return;
  const std::string rest = release(decoder_->finish(), true);
  if (!rest.empty()) show(token_of(-1, rest));
}

std::optional<int32_t> Answer::advance(int32_t sampled, const FetchLogits& fetch, int64_t room,
                                       const Show& show) {
  const auto over = [&](riffle_finish finish) {
    end(finish, show);
    return std::optional<int32_t>();
  };
  if (max_tokens_ == 0) return over(RIFFLE_FINISH_LENGTH);
  const auto no_token = [&] {
    return over(constraint_->complete() ? RIFFLE_FINISH_STOP : RIFFLE_FINISH_LENGTH);
  };
  if (!begun_) begin_draw();
  begun_ = true;
  // A token that was drawn already was allowed.
  if (sampled == kNotSampled && !any_allowed()) return no_token();
  const bool draws = sampled == kNotSampled;
  std::span<const float> logits;
  if (draws || logprobs_) logits = fetch();
  logits = logits.first(std::min<size_t>(logits.size(), n_ids_));
  const int32_t token =
      draws ? sampler_.sample(logits.data(), static_cast<int>(logits.size()), request()) : sampled;
  ++result_.n_tokens;
  if (!ignore_eos_ && config_->ends_answer(token)) return over(RIFFLE_FINISH_STOP);
  if (constraint_ && constraint_->skips_space(tokenizer_->bytes(token))) trimming_ = true;
  const std::string text = decoder_ ? release(decoder_->put(token), false) : std::string();
  riffle_token shown = token_of(token, text);
  Logprobs logprobs;
  if (logprobs_) {
    logprobs = logprobs_of(logits, token, top_logprobs_);
    shown.logprob = logprobs.of_token;
    shown.top = logprobs.top.data();
    shown.n_top = logprobs.top.size();
  }
  const bool go_on = show(shown);
  if (stopped_) return over(RIFFLE_FINISH_STOP);
  if (!go_on) return over(RIFFLE_FINISH_ABORTED);
  if (result_.n_tokens == max_tokens_) return over(RIFFLE_FINISH_LENGTH);
  if (room < 1) return over(RIFFLE_FINISH_CONTEXT);
  (void)request();  // makes the current request, even if the device drew
  requests_.erase(requests_.begin());
  penalties_.take(token);
  if (constraint_ && !constraint_->take(token, tokenizer_->bytes(token))) return no_token();
  if (constraint_ && constraint_->over()) return no_token();
  begin_draw();
  return token;
}

}  // namespace riffle
