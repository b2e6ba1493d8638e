// Decode attention of one layer, all on the device: choose, attend. Only host code; the kernels are
// in the files that decode_parts.h names.
#include "kernels/cuda/attend/covered.h"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {

Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits) {
  const int b = layout.block_size;
  if (!decodes_head_dim(layout.head_dim) || (b != 16 && b != 32 && b != 64) || group < 1 ||
      group > kMaxHeads)
    return cudaErrorNotSupported;
  return layout.type == KvType::F16   ? attend_fits_f16(layout, limits)
         : layout.type == KvType::F32 ? attend_fits_f32(layout, part_heads(group), limits)
                                      : attend_fits_q8(layout, limits);
}

size_t decode_scratch_bytes(const DecodeStep& step) {
  return static_cast<size_t>(decode_scratch(step).bytes);
}

AttendArgs attend_arguments(const DecodeStep& step, const DecodeScratch& scratch) {
  AttendArgs args{};
  args.step = step;
  args.scratch = scratch;
  args.order = scratch.order;
  args.heads = step.n_heads / step.n_kv_heads;
  args.parts = row_parts(args.heads);
  args.group = part_heads(args.heads);
  args.slices = most_slices(step.n_kv_heads, args.heads, step.layout.head_dim);
  args.least = 2;
  args.scale = kLog2e / sqrtf(float(step.layout.head_dim));
  args.arrived = scratch.counters + kFinished;
  args.arrived_stride = kCounterStride;
  return args;
}

Status attend_everything(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const DecodeScratch scratch = decode_scratch(step);
  AttendArgs args = attend_arguments(step, scratch);
  if (step.arrivals != nullptr) {
    args.arrived = step.arrivals;
    args.arrived_stride = kRowArrivals;
  } else {
    const size_t bytes = sizeof(uint32_t) * kCounterStride * step.n * step.n_kv_heads;
    if (Status status = cudaMemsetAsync(scratch.counters, 0, bytes, stream); status != cudaSuccess)
      return status;
  }
  return attend(args, limits, stream);
}

Status attend_share(const DecodeStep& step, const ShareRule& share, const DeviceLimits& limits,
                    cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const DecodeScratch scratch = decode_scratch(step);
  if (Status status = estimate_rows(step, scratch, limits.n_sm, stream); status != cudaSuccess)
    return status;
  if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
  if (Status status = choose_orders(step, share, scratch, stream); status != cudaSuccess)
    return status;
  if (Status status = mark(step.marks[1], stream); status != cudaSuccess) return status;
  return attend(attend_arguments(step, scratch), limits, stream);
}

Status attend_selected(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream) {
  const DecodeScratch scratch = decode_scratch(step);
  if (Status status = drop_samples(step, scratch, stream); status != cudaSuccess) return status;
  return attend(attend_arguments(step, scratch), limits, stream);
}

}  // namespace riffle::cuda
