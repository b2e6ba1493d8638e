// Prompts of a layer of gated delta rule: in chunks (delta_chunk.cuh) or token by token
// (prompt.cuh).
#include <algorithm>

#include "kernels/cuda/gemv/gemv_launch.cuh"
#include "kernels/cuda/recurrent/delta_chunk.cuh"
#include "kernels/cuda/recurrent/keeps.cuh"
#include "kernels/cuda/recurrent/prompt.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of a prompt.
struct Rows {
  GatedDelta shape;
  const float* in;
  float* out;
  int64_t n;
};

// The norm with gate, in place: a warp has a token of a head.
__global__ void __launch_bounds__(kThreads) delta_gate_kernel(const Rows rows) {
  const GatedDelta& s = rows.shape;
  const int64_t i = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (i >= rows.n * s.v_heads) return;
  const int64_t token = i / s.v_heads, head = i % s.v_heads;
  gate_head(rows.out + token * s.values() + head * s.v_dim,
            rows.in + token * s.in_width() + s.z_at(head), s.norm, s.v_dim, s.eps,
            static_cast<int>(threadIdx.x) % 32);
}

// Gates rows [first, first + n) of a prompt.
Status gate(const GatedDelta& shape, const RecurPrompt& prompt, int64_t first, int64_t n,
            cudaStream_t stream) {
  const Rows rows{shape, prompt.in + first * shape.in_width(), prompt.out + first * shape.values(),
                  n};
  const int64_t warps = n * shape.v_heads, a_block = kThreads / 32;
  delta_gate_kernel<<<static_cast<unsigned>((warps + a_block - 1) / a_block), kThreads, 0,
                      stream>>>(rows);
  return cudaGetLastError();
}

struct Carried {
  ChunkPiece piece;
  RecurKeep to[kMostRecurKeeps + 1];  // in ascending order; the last one may be `from`
  int n;
};

// Writes the inputs of the convolution to the states, after all other kernels. A thread has a
// channel.
__global__ void __launch_bounds__(kThreads) delta_carry_kernel(const Carried a) {
  const Layer<GatedDelta>& layer = a.piece.layer;
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (channel >= layer.s.channels()) return;
  const int64_t keys = layer.s.keys(), value = channel - 2 * keys;
  const int64_t k = channel % layer.k_dim(), v = value % layer.v_dim();
  const Span span = value >= 0       ? layer.value(value / layer.v_dim()).part(v)
                    : channel < keys ? layer.query(channel / layer.k_dim()).part(k)
                                     : layer.key((channel - keys) / layer.k_dim()).part(k);
  for (int i = 0; i < a.n; i++)
    a.piece.inputs().carry(a.to[i].row, span.channel, span.at, a.to[i].to);
}

Status carry(const ChunkPiece& piece, cudaStream_t stream) {
  const RecurPrompt& prompt = piece.prompt;
  Carried carried{piece, {}, 0};
  for (int i = 0; i < prompt.n_keeps; i++) carried.to[carried.n++] = prompt.keeps[i];
  carried.to[carried.n++] = {prompt.n, prompt.to};
  const int64_t blocks = (piece.layer.s.channels() + kThreads - 1) / kThreads;
  delta_carry_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(carried);
  return cudaGetLastError();
}

bool has_chunks(const GatedDelta& s, int64_t n) {
  return (s.k_dim == 64 || s.k_dim == 128) && s.v_dim % kChunk == 0 && n >= kChunk;
}

Status run_chunks(const GatedDelta& shape, const RecurPrompt& prompt, const GemvDevice& device,
                  cudaStream_t stream) {
  const int64_t most = kPieceChunks * kChunk;
  const int64_t most_chunks = (std::min(prompt.n, most) + kChunk - 1) / kChunk;
  const Layer<GatedDelta> layer{shape};
  auto* const scratch = static_cast<std::byte*>(prompt.scratch);
  for (int64_t first = 0; first < prompt.n; first += most) {
    const ChunkPiece piece{layer,   prompt,     first, std::min(most, prompt.n - first),
                           scratch, most_chunks};
    if (Status status = launch_chunk_mix(piece, stream); status != cudaSuccess) return status;
    if (Status status = launch_chunk_solve(piece, stream); status != cudaSuccess) return status;
    if (Status status = launch_chunk_scan(piece, device, stream); status != cudaSuccess)
      return status;
    if (Status status = gate(shape, prompt, first, piece.n, stream); status != cudaSuccess)
      return status;
  }
  return carry({layer, prompt, 0, prompt.n, scratch, most_chunks}, stream);
}

Status run_tokens(const GatedDelta& shape, const RecurPrompt& prompt, cudaStream_t stream) {
  return divide_at_keeps(prompt, shape.in_width(), shape.values(), [&](const RecurPrompt& part) {
    return launch_prompt(shape, part, stream, [&](const Piece<GatedDelta>& piece) {
      return gate(shape, part, piece.first, piece.n, stream);
    });
  });
}

}  // namespace

bool recurrent_in_chunks(const GatedDelta& shape, int64_t n) {
  GemvDevice device;
  return has_chunks(shape, n) && ask_device(&device) == cudaSuccess &&
         chunk_kernels_fit(shape, device);
}

int64_t recurrent_scratch(const GatedDelta& shape, int64_t n) {
  const int64_t by_token = prompt_scratch(shape, n);
  if (!has_chunks(shape, n)) return by_token;
  const int64_t chunks = std::min<int64_t>(kPieceChunks, (n + kChunk - 1) / kChunk);
  const ChunkPiece piece{Layer<GatedDelta>{shape}, {}, 0, 0, nullptr, 0};
  return std::max(by_token, chunks * piece.chunk_bytes());
}

Status recur_prompt(const GatedDelta& shape, const RecurPrompt& args, cudaStream_t stream) {
  if (!supported(Layer<GatedDelta>{shape})) return cudaErrorInvalidValue;
  if (!has_chunks(shape, args.n)) return run_tokens(shape, args, stream);
  GemvDevice device;
  if (Status status = ask_device(&device); status != cudaSuccess) return status;
  if (!chunk_kernels_fit(shape, device)) return run_tokens(shape, args, stream);
  if (!args.in || !args.to || !args.out || !args.scratch || !keeps_are_valid(args))
    return cudaErrorInvalidValue;
  return run_chunks(shape, args, device, stream);
}

}  // namespace riffle::cuda
