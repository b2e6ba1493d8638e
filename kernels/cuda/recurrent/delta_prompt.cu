// Prompts of a layer of gated delta rule.
#include "kernels/cuda/recurrent/prompt.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// The norm with gate, in place: a warp has a token of a head.
__global__ void __launch_bounds__(kThreads) delta_gate_kernel(const Piece<GatedDelta> p) {
  const GatedDelta& s = p.mixed.layer.s;
  const int64_t i = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (i >= p.n * s.v_heads) return;
  const int64_t token = p.first + i / s.v_heads, head = i % s.v_heads;
  gate_head(p.prompt.out + token * s.values() + head * s.v_dim,
            p.prompt.in + token * s.in_width() + s.z_at(head), s.norm, s.v_dim, s.eps,
            static_cast<int>(threadIdx.x) % 32);
}

}  // namespace

int64_t recurrent_scratch(const GatedDelta& shape, int64_t n) { return prompt_scratch(shape, n); }

Status recur_prompt(const GatedDelta& shape, const RecurPrompt& args, cudaStream_t stream) {
  return launch_prompt(shape, args, stream, [&](const Piece<GatedDelta>& piece) {
    const int64_t warps = piece.n * shape.v_heads, a_block = kThreads / 32;
    delta_gate_kernel<<<static_cast<unsigned>((warps + a_block - 1) / a_block), kThreads, 0,
                        stream>>>(piece);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
