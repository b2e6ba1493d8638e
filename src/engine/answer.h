// One answer under way: draws tokens, streams their text, and knows when to end.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "model/model.h"
#include "model/text/tokenizer.h"
#include "riffle.h"

namespace riffle {

void check_generate_options(const riffle_generate_options& options);

class Answer {
 public:
  // A token and the text that is new and safe to show (of riffle_token_fn). False ends the answer
  // as aborted.
  using Show = std::function<bool(int32_t token, const std::string& text)>;

  // A model without a tokenizer gives tokens and no text. Keeps a copy of all of options.
  Answer(const Model& model, const riffle_generate_options& options);
  Answer(Answer&&) = default;

  // What the device may draw the next token with; each call takes the next random number.
  void request_next() { request_ = sampler_.request(); }
  const SampleRequest& request() const { return request_; }

  // Takes the next token, `sampled` or, if that is Backend::kNotSampled, one drawn from logits
  // [vocab_size]. room: tokens that the sequence can still hold. The token to step with, or
  // nothing: the answer has ended.
  std::optional<int32_t> advance(int32_t sampled, std::span<const float> logits, int64_t room,
                                 const Show& show);
  // Ends it from outside.
  void end(riffle_finish finish, const Show& show);

  const riffle_result& result() const { return result_; }

 private:
  std::string release(std::string fresh, bool all);

  const Config* config_;
  int n_ids_;  // that may be drawn: what lies beyond is padding
  std::vector<std::string> stops_;
  int32_t max_tokens_;
  bool ignore_eos_;
  std::optional<StreamDecoder> decoder_;
  Sampler sampler_;
  SampleRequest request_;
  std::string pending_;
  bool trimming_, stopped_ = false;
  riffle_result result_{RIFFLE_FINISH_NONE, 0};
};

}  // namespace riffle
