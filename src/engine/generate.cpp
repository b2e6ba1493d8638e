#include "engine/generate.h"

#include <algorithm>
#include <string>

#include "engine/sampler.h"
#include "model/tokenizer.h"
#include "util/error.h"

namespace riffle {

void check_generate_options(const riffle_generate_options& o) {
  if (o.struct_size != sizeof o)
    fail(RIFFLE_BAD_ARGUMENT, "generate options: struct_size is %zu, expected %zu", o.struct_size, sizeof o);
  if (o.sampling.struct_size != sizeof o.sampling)
    fail(RIFFLE_BAD_ARGUMENT, "sampling: struct_size is %zu, expected %zu", o.sampling.struct_size, sizeof o.sampling);
  check_sampling(o.sampling.temperature, o.sampling.top_k, o.sampling.top_p, o.sampling.min_p);
  if (o.max_tokens < -1) fail(RIFFLE_BAD_ARGUMENT, "max_tokens is %d, expected -1 or more", o.max_tokens);
  if (o.n_stop && !o.stop) fail(RIFFLE_BAD_ARGUMENT, "stop is NULL, but n_stop is %zu", o.n_stop);
  for (size_t i = 0; i < o.n_stop; ++i)
    if (!o.stop[i] || !*o.stop[i]) fail(RIFFLE_BAD_ARGUMENT, "stop[%zu] is empty", i);
}

namespace {

// One answer under way.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const riffle_generate_options& options)
      : options_(options), decoder_(tokenizer, false),
        sampler_(options.sampling.seed, options.sampling.temperature, options.sampling.top_k, options.sampling.top_p,
                 options.sampling.min_p),
        trimming_(options.trim_start) {}

  int32_t sample(const std::vector<float>& logits, int n_ids, const SampleRequest& request) {
    return sampler_.sample(logits.data(), n_ids, request);
  }
  SampleRequest request() { return sampler_.request(); }

  // Takes a token in; returns the text that is safe to show. Sets stopped() when a stop string appeared.
  std::string put(int32_t token) { return release(decoder_.put(token), false); }
  std::string finish() { return stopped_ ? std::string() : release(decoder_.finish(), true); }
  bool stopped() const { return stopped_; }

 private:
  std::string release(std::string fresh, bool all) {
    if (trimming_) {
      const size_t start = fresh.find_first_not_of(" \t\r\n");
      if (start == std::string::npos) return {};
      fresh.erase(0, start);
      trimming_ = false;
    }
    pending_ += fresh;
    size_t cut = std::string::npos;
    for (size_t i = 0; i < options_.n_stop; ++i) cut = std::min(cut, pending_.find(options_.stop[i]));
    if (cut != std::string::npos) {
      stopped_ = true;
      pending_.resize(cut);
      return std::move(pending_);
    }
    // The longest end of the text that a stop string may begin with stays back.
    size_t keep = 0;
    for (size_t i = 0; !all && i < options_.n_stop; ++i) {
      const std::string_view stop = options_.stop[i];
      for (size_t n = std::min(stop.size() - 1, pending_.size()); n > keep; --n)
        if (pending_.compare(pending_.size() - n, n, stop.substr(0, n)) == 0) keep = n;
    }
    std::string out = pending_.substr(0, pending_.size() - keep);
    pending_.erase(0, out.size());
    return out;
  }

  const riffle_generate_options& options_;
  StreamDecoder decoder_;
  Sampler sampler_;
  std::string pending_;
  bool trimming_, stopped_ = false;
};

}  // namespace

void generate(Engine& engine, std::span<Sequence* const> sequences, std::span<const riffle_generate_options> options,
              riffle_token_fn callback, void* user, std::span<riffle_result> results) {
  const Tokenizer& tokenizer = *engine.model().tokenizer;
  const int n_ids = drawable_ids(engine.model());
  std::vector<Answer> answers;
  answers.reserve(sequences.size());
  std::vector<size_t> active;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->logits.empty())
      fail(RIFFLE_BAD_ARGUMENT, "session %zu has no logits: prefill it before generating", i);
    answers.emplace_back(tokenizer, options[i]);
    results[i] = {RIFFLE_FINISH_NONE, 0};
    active.push_back(i);
  }
  const auto show = [&](size_t i, int32_t token, const std::string& text) {
    return !callback || callback(user, i, token, text.data(), text.size());
  };
  const auto end = [&](size_t i, riffle_finish finish) {
    results[i].finish = finish;
    const std::string rest = answers[i].finish();
    if (!rest.empty()) show(i, -1, rest);
  };

  std::vector<Sequence*> stepping;
  std::vector<int32_t> tokens;
  // The draw that comes next for each of the active, and its token where the device made it.
  std::vector<SampleRequest> requests;
  std::vector<int32_t> sampled(active.size(), Backend::kNotSampled);
  for (Answer& answer : answers) requests.push_back(answer.request());
  while (!active.empty()) {
    if (engine.take_abort()) {
      for (size_t i : active) end(i, RIFFLE_FINISH_ABORTED);
      return;
    }
    stepping.clear();
    tokens.clear();
    std::vector<size_t> next;
    for (size_t at = 0; at < active.size(); ++at) {
      const size_t i = active[at];
      Sequence& s = *sequences[i];
      if (options[i].max_tokens == 0) {
        end(i, RIFFLE_FINISH_LENGTH);
        continue;
      }
      const int32_t token = sampled[at] != Backend::kNotSampled
                                ? sampled[at]
                                : answers[i].sample(s.logits, n_ids, requests[at]);
      ++results[i].n_tokens;
      if (!options[i].ignore_eos && engine.model().config.ends_answer(token)) {
        end(i, RIFFLE_FINISH_STOP);
        continue;
      }
      const bool go_on = show(i, token, answers[i].put(token));
      if (answers[i].stopped()) end(i, RIFFLE_FINISH_STOP);
      else if (!go_on) {
        if (sequences.size() == 1) engine.take_abort();  // the callback may have asked for it as well
        end(i, RIFFLE_FINISH_ABORTED);
      }
      else if (results[i].n_tokens == options[i].max_tokens) end(i, RIFFLE_FINISH_LENGTH);
      else if (s.kv.n_tokens + 1 > engine.n_ctx()) end(i, RIFFLE_FINISH_CONTEXT);
      else {
        next.push_back(i);
        stepping.push_back(&s);
        tokens.push_back(token);
      }
    }
    active.swap(next);
    if (stepping.empty()) continue;
    requests.clear();
    for (size_t i : active) requests.push_back(answers[i].request());
    sampled.assign(active.size(), Backend::kNotSampled);
    engine.step(stepping, tokens, requests.data(), sampled.data());
  }
}

}  // namespace riffle
