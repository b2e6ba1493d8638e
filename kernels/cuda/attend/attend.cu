// Decode attention of one layer: score, rank, attend (attend.cuh), all on the device.
#include "kernels/cuda/attend/attend.cuh"

namespace riffle::cuda {

Status attend_f16(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  switch (padded_dim(args.step.layout.head_dim)) {
    case 32: return launch_attend<__half, 32, kMaxGroup>(args, limits, stream);
    case 64: return launch_attend<__half, 64, kMaxGroup>(args, limits, stream);
    case 128: return launch_attend<__half, 128, kMaxGroup>(args, limits, stream);
    default: return launch_attend<__half, 256, kMaxGroup>(args, limits, stream);
  }
}

Status attend_fits_f16(const KvLayout& layout, const DeviceLimits& limits) {
  RingSize ring;
  switch (padded_dim(layout.head_dim)) {
    case 32: return ring_of<__half, 32, kMaxGroup>(layout, limits, ring);
    case 64: return ring_of<__half, 64, kMaxGroup>(layout, limits, ring);
    case 128: return ring_of<__half, 128, kMaxGroup>(layout, limits, ring);
    default: return ring_of<__half, 256, kMaxGroup>(layout, limits, ring);
  }
}

Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits) {
  const int d = layout.head_dim, b = layout.block_size;
  const bool dim = d == 16 || d == 32 || d == 64 || d == 80 || d == 96 || d == 128 || d == 256;
  if (!dim || (b != 16 && b != 32 && b != 64) || group < 1 || group > kMaxGroup)
    return cudaErrorNotSupported;
  return layout.type == KvType::F16 ? attend_fits_f16(layout, limits)
                                    : attend_fits_f32(layout, group, limits);
}

size_t decode_scratch_bytes(const DecodeStep& step) {
  return static_cast<size_t>(decode_scratch(step, false).bytes);
}

static Status mark(cudaEvent_t event, cudaStream_t stream) {
  return event ? cudaEventRecord(event, stream) : cudaSuccess;
}

Status attend_decode(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const DecodeScratch scratch = decode_scratch(step, false);
  AttendArgs args{};
  args.arrived = scratch.counters + 1;  // Counter kFinished
  args.arrived_stride = kCounterStride;
  if (step.ranked.everything && step.arrivals != nullptr) {
    args.arrived = step.arrivals;
    args.arrived_stride = 1;
  } else if (step.ranked.everything) {
    const size_t bytes = sizeof(uint32_t) * kCounterStride * step.n * step.n_kv_heads;
    if (Status status = cudaMemsetAsync(scratch.counters, 0, bytes, stream); status != cudaSuccess)
      return status;
  } else if (step.ranked.by_share) {
    if (Status status = estimate_rows(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
    if (Status status = choose_orders(step, scratch, stream); status != cudaSuccess) return status;
    if (Status status = mark(step.marks[1], stream); status != cudaSuccess) return status;
  } else if (step.ranked.vote.select > 0) {
    if (Status status = vote_tokens(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
    if (Status status = choose_voted(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[1], stream); status != cudaSuccess) return status;
  } else if (step.ranked.top_p > 0) {
    if (step.ranked.progressive && step.ranked.stop != Stop::Paper &&
        step.ranked.stop != Stop::Window)
      return cudaErrorNotSupported;
    if (ranks_base(step.ranked)) {
      if (Status status = score_rows(step, scratch, limits.n_sm, stream); status != cudaSuccess)
        return status;
      const int want = step.ranked.progressive ? static_cast<int>(step.max_blocks) : 0;
      if (Status status = rank_orders(step, scratch, scratch.order, nullptr, want, stream);
          status != cudaSuccess)
        return status;
    }
    if (Status status = score_tokens(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
    if (Status status = choose_tokens(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[1], stream); status != cudaSuccess) return status;
  } else {
    // Bounds for the test are made of digests alone.
    if (step.ranked.rank_codes && step.ranked.progressive && step.ranked.stop != Stop::Paper &&
        step.ranked.stop != Stop::Window)
      return cudaErrorNotSupported;
    const auto score = step.ranked.rank_codes ? estimate_rows : score_rows;
    if (Status status = score(step, scratch, limits.n_sm, stream); status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
    if (Status status = rank_orders(step, scratch, scratch.order, nullptr, 0, stream);
        status != cudaSuccess)
      return status;
    if (Status status = mark(step.marks[1], stream); status != cudaSuccess) return status;
  }
  args.step = step;
  args.scratch = scratch;
  args.order = scratch.order;
  args.group = g;
  args.scale = kLog2e / sqrtf(float(step.layout.head_dim));
  args.tests = step.ranked.progressive && !step.ranked.everything && !chooses_order(step.ranked);
  if (chooses_tokens(step.ranked)) args.step.masks = scratch.masks;
  return step.layout.type == KvType::F16 ? attend_f16(args, limits, stream)
                                         : attend_f32(args, limits, stream);
}

}  // namespace riffle::cuda
