// One answer under way: draws tokens, streams their text, and knows when to end.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/penalties.h"
#include "engine/sampler.h"
#include "grammar/constraint.h"
#include "model/model.h"
#include "model/text/tokenizer.h"
#include "riffle.h"

namespace riffle {

void check_generate_options(const riffle_generate_options& options);

class Answer {
 public:
  // As riffle_token_fn: gets a token and the new text that is safe to show. Returning false ends
  // the answer as aborted.
  using Show = std::function<bool(const riffle_token& token)>;

  // Without a tokenizer in the model there are tokens and no text. prompt: the tokens before the
  // answer, for penalties. Both are copied.
  Answer(const Model& model, const riffle_generate_options& options,
         std::span<const int32_t> prompt);
  Answer(Answer&&) = default;

  // The draw of the next token (0), or of the i-th token behind it, for a device that samples. Each
  // draw has its random number by its place in the answer. Valid until the answer changes.
  const SampleRequest& request(size_t i = 0);
  // Number of tokens behind the one that is next in the sequence whose logits the answer may use.
  int64_t room_ahead() const;
  // How many of these tokens, which may follow the next one, the grammar allows. From then on
  // request(i) has what is allowed and what is penalised behind i of them. Throws nothing.
  size_t allow_ahead(std::span<const int32_t> tokens);

  // Takes the next token: `sampled`, or a draw from logits [vocab_size] if sampled is
  // Backend::kNotSampled. room: how many more tokens the sequence can hold. Returns the token to
  // step with, or nothing if the answer has ended.
  std::optional<int32_t> advance(int32_t sampled, std::span<const float> logits, int64_t room,
                                 const Show& show);
  // Ends the answer for a reason that the caller gives.
  void end(riffle_finish finish, const Show& show);

  const riffle_result& result() const { return result_; }

 private:
  std::string release(std::string fresh, bool all);
  bool find_next();

  const Config* config_;
  int n_ids_;  // ids below this may be drawn; the others are padding
  std::vector<std::string> stops_;
  int32_t max_tokens_;
  bool ignore_eos_;
  std::optional<StreamDecoder> decoder_;
  Sampler sampler_;
  std::vector<SampleRequest> requests_;  // of the next draws, as far as anyone asked
  const Tokenizer* tokenizer_;
  std::optional<grammar::Constraint> constraint_;
  std::vector<std::vector<uint32_t>> allowed_;  // with a grammar: of the first requests
  Penalties penalties_;
  std::vector<std::vector<LogitChange>> changes_;  // with penalties: likewise
  bool logprobs_;
  int32_t top_logprobs_;
  std::string pending_;
  bool trimming_, begun_ = false, stopped_ = false;
  riffle_result result_{};
};

}  // namespace riffle
