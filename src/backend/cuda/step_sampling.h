// The draw of a step's tokens on the device.
#pragma once
#include "backend/cuda/step_logits.h"
#include "backend/cuda/step_memory.h"
#include "backend/step.h"
#include "kernels/cuda/sample/sample.h"

namespace riffle::cuda {

class StepSampling {
 public:
  // drawable_ids: tokens that may be drawn, the first ones of the vocabulary.
  StepSampling(StepMemory* memory, const Stream* compute, int64_t vocab_size, int64_t drawable_ids)
      : memory_(memory), compute_(compute), vocab_size_(vocab_size), drawable_ids_(drawable_ids) {}

  // Returns the bytes of each of its buffers on the device, for steps of n rows.
  static std::vector<uint64_t> most_buffers(int64_t n, int64_t vocab_size, int64_t drawable_ids);
  // Sets the tokens that are to be drawn, and whether the device draws them.
  void begin(const StepRequest& step);
  // Takes all memory that the draws need.
  void grow();
  // Copies the requests to the device. Masks follow in draw_masked.
  void upload();
  // Returns true if the draw is an operation of the step itself; else it waits for masks, or for
  // the caller.
  bool draws_in_step() const { return here_ && !masked_; }
  bool changed() const { return changed_; }  // some rows are drawn from logits that change
  void draw(const StepLogits& logits);
  // Called while the device is at work.
  void find_masks();
  // Draws with masks, if there are any. Masks are copied last in the stream, after all calls of the
  // device are answered: a driver call may block while another thread frees memory, and that thread
  // waits for the device.
  void draw_masked(const StepLogits& logits);
  // tokens: gets the drawn tokens, after the step.
  void give(int32_t* tokens) const;

 private:
  // A buffer of draws, and when they need it: memory for masks and changes is taken with the first
  // answer that has some.
  enum class Need { ALWAYS, MASKS, CHANGES };
  struct Sized {
    Buffer StepSampling::*buffer;
    uint64_t bytes;
    Need need;
    bool pinned;
  };
  static std::vector<Sized> buffers(int64_t n, int64_t vocab_size, int64_t drawable_ids);
  static int64_t words_of(int64_t ids) { return (ids + 31) / 32; }
  int64_t mask_words() const { return words_of(drawable_ids_); }  // SampleRequest::allowed
  template <class T>
  const T* upload_row(Buffer& to, Buffer& pinned, int64_t i, int64_t row, const T* from, int64_t n);

  StepMemory* memory_;
  const Stream* compute_;
  int64_t vocab_size_, drawable_ids_;
  const StepRequest* step_ = nullptr;
  bool here_ = false;     // tokens are drawn on the device
  bool masked_ = false;   // ... some of them with a mask, which is found during the step
  bool changed_ = false;  // ... some of them from logits that penalties change
  Buffer params_, scratch_, tokens_, masks_, changes_, replaced_;
  Buffer host_params_, host_masks_, host_changes_, host_tokens_;  // pinned
};

}  // namespace riffle::cuda
