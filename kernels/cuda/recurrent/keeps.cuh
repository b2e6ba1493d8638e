// States inside a prompt, for kernels that only write the state after their last row.
#pragma once
#include "kernels/cuda/recurrent/recurrent.h"

namespace riffle::cuda {

inline bool keeps_are_valid(const RecurPrompt& p) {
  if (p.n_keeps < 0 || p.n_keeps > kMostRecurKeeps || (p.n_keeps > 0 && !p.keeps)) return false;
  for (int i = 0; i < p.n_keeps; i++)
    if (!p.keeps[i].to || p.keeps[i].row <= (i > 0 ? p.keeps[i - 1].row : 0) ||
        p.keeps[i].row >= p.n)
      return false;
  return true;
}

// Calls run with the parts of a prompt between the states that are kept; each goes on from the
// state that the one before it has written.
template <class Run>
Status divide_at_keeps(const RecurPrompt& prompt, int64_t in_width, int64_t out_width,
                       const Run& run) {
  if (prompt.n < 1 || !prompt.in || !prompt.out || !prompt.to || !keeps_are_valid(prompt))
    return cudaErrorInvalidValue;
  RecurPrompt part = prompt;
  part.keeps = nullptr, part.n_keeps = 0;
  int64_t first = 0;
  for (int i = 0; i <= prompt.n_keeps; i++) {
    const bool is_kept = i < prompt.n_keeps;
    const int64_t last = is_kept ? prompt.keeps[i].row : prompt.n;
    part.to = is_kept ? prompt.keeps[i].to : prompt.to;
    part.in = prompt.in + first * in_width, part.out = prompt.out + first * out_width;
    part.n = last - first;
    if (Status status = run(part); status != cudaSuccess) return status;
    part.from = part.to, first = last;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
