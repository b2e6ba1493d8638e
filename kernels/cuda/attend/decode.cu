// Decode attention of one layer, all on the device: score, choose, attend. Host code alone; the
// kernels are in the files that decode_parts.h names.
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {
namespace {

using Part = Status (*)(const DecodeStep&, const DecodeScratch&, int n_sm, cudaStream_t);

// How a rule comes to the blocks that a row reads: score fills the scratch with what the rule
// judges by, choose turns that into the rows' orders.
struct Choice {
  Part score, choose;
};

Status rank_first(const DecodeStep& step, const DecodeScratch& scratch, int, cudaStream_t stream) {
  return rank_orders(step, scratch, scratch.order, nullptr, 0, stream);
}

Status choose_share(const DecodeStep& step, const DecodeScratch& scratch, int,
                    cudaStream_t stream) {
  return choose_orders(step, scratch, stream);
}

// Of the base's blocks, where the base ranks any, every token.
Status score_base_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                         cudaStream_t stream) {
  if (ranks_base(step.ranked)) {
    if (Status status = score_rows(step, scratch, n_sm, stream); status != cudaSuccess)
      return status;
    const int want = step.ranked.progressive ? static_cast<int>(step.max_blocks) : 0;
    if (Status status = rank_orders(step, scratch, scratch.order, nullptr, want, stream);
        status != cudaSuccess)
      return status;
  }
  return score_tokens(step, scratch, n_sm, stream);
}

constexpr Choice kByDigests{score_rows, rank_first}, kByCodes{estimate_rows, rank_first},
    kByShare{estimate_rows, choose_share}, kByVote{vote_tokens, choose_voted},
    kByTopP{score_base_tokens, choose_tokens};

// Not for Ranked::everything, which chooses nothing.
const Choice& choice_of(const Ranked& r) {
  return r.by_share          ? kByShare
         : r.vote.select > 0 ? kByVote
         : r.top_p > 0       ? kByTopP
         : r.rank_codes      ? kByCodes
                             : kByDigests;
}

// Bounds for the test are made of digests alone.
bool has_kernels(const Ranked& r) {
  const Choice& choice = choice_of(r);
  const bool by_codes = &choice == &kByTopP || &choice == &kByCodes;
  return !by_codes || !r.progressive || r.stop == Stop::Paper || r.stop == Stop::Last;
}

Status mark(cudaEvent_t event, cudaStream_t stream) {
  return event ? cudaEventRecord(event, stream) : cudaSuccess;
}

// What the rows read, in their orders.
Status choose(const DecodeStep& step, const DecodeScratch& scratch, int n_sm, cudaStream_t stream) {
  if (!has_kernels(step.ranked)) return cudaErrorNotSupported;
  const Choice& choice = choice_of(step.ranked);
  if (Status status = choice.score(step, scratch, n_sm, stream); status != cudaSuccess)
    return status;
  if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
  if (Status status = choice.choose(step, scratch, n_sm, stream); status != cudaSuccess)
    return status;
  return mark(step.marks[1], stream);
}

}  // namespace

Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits) {
  const int d = layout.head_dim, b = layout.block_size;
  const bool dim = d == 16 || d == 32 || d == 64 || d == 80 || d == 96 || d == 128 || d == 256;
  if (!dim || (b != 16 && b != 32 && b != 64) || group < 1 || group > kMaxGroup)
    return cudaErrorNotSupported;
  return layout.type == KvType::F16   ? attend_fits_f16(layout, limits)
         : layout.type == KvType::F32 ? attend_fits_f32(layout, group, limits)
                                      : attend_fits_q8(layout, limits);
}

size_t decode_scratch_bytes(const DecodeStep& step) {
  return static_cast<size_t>(decode_scratch(step, false).bytes);
}

Status attend_decode(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const DecodeScratch scratch = decode_scratch(step, false);
  AttendArgs args{};
  args.arrived = scratch.counters + 1;  // Counter kFinished
  args.arrived_stride = kCounterStride;
  if (!step.ranked.everything) {
    if (Status status = choose(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
  } else if (step.arrivals != nullptr) {
    args.arrived = step.arrivals;
    args.arrived_stride = 1;
  } else {
    const size_t bytes = sizeof(uint32_t) * kCounterStride * step.n * step.n_kv_heads;
    if (Status status = cudaMemsetAsync(scratch.counters, 0, bytes, stream); status != cudaSuccess)
      return status;
  }
  args.step = step;
  args.scratch = scratch;
  args.order = scratch.order;
  args.group = g;
  args.scale = kLog2e / sqrtf(float(step.layout.head_dim));
  args.tests = step.ranked.progressive && !step.ranked.everything && !chooses_order(step.ranked);
  if (chooses_tokens(step.ranked)) args.step.masks = scratch.masks;
  return attend(args, limits, stream);
}

}  // namespace riffle::cuda
