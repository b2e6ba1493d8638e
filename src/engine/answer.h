// One answer: draws tokens, streams their text, and knows when to end.
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
#include "riffle.h"
#include "text/tokenizer.h"
#include "util/options.h"

namespace riffle {

void check_generate_options(const GenerateOptions& options);
// Throws RIFFLE_CONTEXT_FULL if the options have a limit_field and the context cannot hold a prompt
// of n_tokens and the answer.
void require_room(const GenerateOptions& options, size_t n_tokens, int64_t n_ctx);

class Answer {
 public:
  // Receives a token and the new text that is safe to show, like riffle_token_fn. A result of false
  // ends the answer as aborted.
  using Show = std::function<bool(const riffle_token& token)>;

  // Without a tokenizer in the model there are tokens and no text. prompt: the tokens before the
  // answer, for penalties. Both are copied.
  Answer(const Model& model, const GenerateOptions& options, std::span<const int32_t> prompt);
  Answer(Answer&&) = default;

  // Returns the draw of the next token (0), or of the i-th token after it, for a device that
  // samples. The random number of a draw depends only on its place in the answer. Valid until the
  // answer changes.
  const SampleRequest& request(size_t i = 0);
  // Finds the tokens that the grammar allows at this draw: the words of request(i).allowed. The
  // engine calls it while the device computes the logits. If it fails, no token is allowed, and
  // `advance` finds the mask again and reports the error.
  void find_mask(size_t i) noexcept;
  // Draws as request(i) will, from other logits, as if nothing were penalised or forbidden. The
  // draw of a guess then tends to be that of the answer.
  int32_t guess(std::span<const float> logits, size_t i);
  // Returns this draw for a device that samples.
  SampleRequest guess_request(size_t i);
  // Returns the number of tokens after the sequence's next one whose logits the answer may use.
  int64_t room_ahead() const;
  // Returns how many of these tokens, which may follow the next one, the grammar allows. After:
  // request(i) is for the draw that follows i of them. Throws nothing.
  size_t allow_ahead(std::span<const int32_t> tokens);

  // Gets the logits [vocab_size] that the next token is drawn from.
  using FetchLogits = std::function<std::span<const float>()>;
  // Takes the next token: `sampled`, or a draw from the logits if sampled is kNotSampled. Fetches
  // them only if it needs them. room: number of further tokens that the sequence can hold. Returns
  // the token to step with, or nothing if the answer has ended. Sometimes only the step shows that
  // the grammar allows no token after this one; the next call then ends the answer.
  std::optional<int32_t> advance(int32_t sampled, const FetchLogits& fetch, int64_t room,
                                 const Show& show);
  // Ends the answer for a reason that the caller gives.
  void end(riffle_finish finish, const Show& show);

  const riffle_result& result() const { return result_; }

 private:
  std::string release(std::string fresh, bool all);
  void begin_draw();
  void fill_mask(size_t i);
  bool any_allowed();

  const Config* config_;
  int n_ids_;  // ids below this may be drawn; the others are padding
  std::vector<std::string> stops_;
  int32_t max_tokens_;
  bool ignore_eos_;
  std::optional<StreamDecoder> decoder_;
  Sampler sampler_;
  std::vector<SampleRequest> requests_;  // requests of the next draws that callers have asked for
  const Tokenizer* tokenizer_;
  std::optional<grammar::Constraint> constraint_;
  // With a grammar: the masks of the first requests, and the grammar's state after each token
  // ahead.
  struct Mask {
    explicit Mask(size_t n_words) : words(n_words) {}
    std::vector<uint32_t> words;
    bool found = false, any = false;
  };
  std::vector<Mask> masks_;
  std::vector<grammar::Constraint> ahead_;
  Penalties penalties_;
  std::vector<std::vector<LogitChange>> changes_;  // with penalties: those of the first requests
  bool logprobs_;
  int32_t top_logprobs_;
  std::string pending_;
  bool trimming_, begun_ = false, stopped_ = false;
  riffle_result result_{};
};

}  // namespace riffle
