// Launchers of the CUDA kernels: raw device pointers, sizes and a stream in, a status out. Nothing
// here allocates, synchronises, prints or keeps state, so every launch can be captured into a
// graph. One op a file: kernels/<op>.cu holds the kernel first and its launcher under it. Host code
// may include this header; it needs no CUDA compiler.
//
// Results: a row's (token's, query's) bits depend on its own inputs only, never on what else is in
// the batch, where a block lies, or which thread came first; no floating-point atomics. Pointers:
// 16-byte aligned, device memory, unless a comment says otherwise. Sizes are > 0 unless said.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/host_device.h"

namespace riffle::cuda {

using Status = cudaError_t;  // of the launch

using WType = DType;
// Mirror riffle_kv_type, riffle_digest, riffle_gqa, riffle_stop (a test pins the equality).
enum class KvType : uint8_t { F16 = 0, F32 = 1 };
enum class DigestKind : uint8_t { Mean = 0, Quest = 1, CuboidMean = 2 };
enum class Gqa : uint8_t { Mean = 0, SoftSum = 1, Union = 2 };
enum class Stop : uint8_t { Paper = 0, Window = 1, Bound = 2, Veto = 3 };
enum class VoteKind : uint8_t { Soft = 0, Logits = 1, Hard = 2 };  // riffle_vote

// ---- linear.h's worth: gemv.cu bias.cu rmsnorm.cu swiglu.cu convert.cu rope.cu sample.cu
// synthetic.cu ----------------

// A weight matrix on the device, [rows][cols]. F32, F16, BF16: row-major at data. Quantised types
// are split so that loads are aligned, each part row-major:
// - Q8_0: int8 quants [cols] at data; at scales an f16 for each 32 of them; value = scale * quant.
// - 4 to 6 bits: the low halves of 32 values that follow each other are 16 bytes at data, value j
// in the low half of byte
//   j, value j + 16 in the high half. What a value has beyond 4 bits is at high, for the same 32
//   values:
//     Q5_0, Q5_1, Q5_K: 4 bytes; bit k of byte b is for value 4k + b;
//     Q6_K: 8 bytes; bits 2k, 2k+1 of byte b < 4 are for value 4k + b, of byte 4 + b for value 16 +
//     4k + b.
//   At scales, as a file has them but apart from the values:
//     Q4_0, Q5_0: f16 d for 32 values; Q4_1, Q5_1: f16 d, m for 32 values;
//     Q4_K, Q5_K: 16 bytes for 256 values: f16 d, dmin; bytes 4 + g, g < 8: the low halves of group
//     g's scale and (high
//       half of the byte) minimum; bytes 12 + i: scale bits 4, 5 and minimum bits 4, 5 of group i,
//       then of group 4 + i;
//     Q6_K: 16 int8 for 256 values; and at blocks their f16 d.
//   Rows of each of these parts are padded to 16 bytes, with zeros. kernels/cpu/linear/quants.h
//   says what the values are.
struct Matrix {
  WType type = WType::F32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  const void* high = nullptr;
  const void* blocks = nullptr;
};

// Bytes that a row takes in each part of a matrix. cols is whole blocks of the type.
struct RowParts {
  int64_t data = 0, scales = 0, high = 0, blocks = 0;
};
RIFFLE_HOST_DEVICE constexpr int64_t padded16(int64_t bytes) { return (bytes + 15) / 16 * 16; }
RIFFLE_HOST_DEVICE constexpr RowParts row_parts(WType type, int64_t cols) {
  const int64_t half = cols / 2;  // bytes of low halves
  switch (type) {
    case WType::F32: return {4 * cols, 0, 0, 0};
    case WType::F16:
    case WType::BF16: return {2 * cols, 0, 0, 0};
    case WType::Q8_0: return {cols, cols / 16, 0, 0};
    case WType::Q4_0: return {half, padded16(cols / 16), 0, 0};
    case WType::Q4_1: return {half, padded16(cols / 8), 0, 0};
    case WType::Q5_0: return {half, padded16(cols / 16), padded16(cols / 8), 0};
    case WType::Q5_1: return {half, padded16(cols / 8), padded16(cols / 8), 0};
    case WType::Q4_K: return {half, cols / 16, 0, 0};
    case WType::Q5_K: return {half, cols / 16, cols / 8, 0};
    case WType::Q6_K: return {half, cols / 16, cols / 4, padded16(cols / 128)};
  }
  return {};
}

enum class Then : uint8_t {
  Store,   // y[o] = W[o] x
  Add,     // y[o] += W[o] x
  SwiGlu,  // two matrices of one shape: y[0] = silu(W[0] x) * (W[1] x)
};

// Which units multiply weights of 4 to 6 bits. The bits are the same; tensor cores need compute
// capability 9.0, and where there are none the others do it. Other types take no notice.
enum class Cores : uint8_t { Best, Tensor, Ordinary };

inline constexpr int kGemvMaxOuts = 3, kGemvMaxRows = 16;

// Decode: few rows x, bound by reading the weights once (once for 8 rows; for 16 those of 4 to 6
// bits and, where two blocks of a cluster of compute capability 9.0 have the shared memory for it,
// BF16). The bits of a row of y do not depend on n or on the other rows. Arithmetic in f32; weights
// are widened. With BF16 weights x goes through tensor cores in two bf16 parts, which leaves out at
// most 2^-18 of a value. With weights of 4 to 6 bits products are of integers: x (times norm) is
// rounded to 2^-22 of the largest of its group of 32 columns, and a group that is not all finite
// makes NaN.
struct Gemv {
  const float* x = nullptr;  // [n][ldx]
  int64_t ldx = 0;
  int n = 1;  // 1 to kGemvMaxRows
  const float* norm =
      nullptr;  // [cols]: x is RMS-normalised and multiplied by this first; null: taken as it is
  float eps = 0;
  Matrix w[kGemvMaxOuts];       // of the same cols; any mix of types
  float* y[kGemvMaxOuts] = {};  // [n][ldy]; y must not overlap x
  int64_t ldy[kGemvMaxOuts] = {};
  int n_outs = 1;  // SwiGlu: 2 matrices, output y[0]
  Then then = Then::Store;
  // Programmatic dependent launch: the kernel may start, and read weights, while the one before it
  // in the stream still runs; it waits before it touches x, norm or y. So the kernel before must
  // not be the one that writes the weights.
  bool overlap = false;
  Cores cores = Cores::Best;
};
Status gemv(const Gemv& args, cudaStream_t stream);

// y[i][r] += bias[r] for n rows [n][ldy], r in [0, rows).
Status add_bias(float* y, int64_t n, int64_t ldy, int64_t rows, const float* bias,
                cudaStream_t stream);

// out = x / rms(x) * weight, n rows of dim, as f32, f16 or bf16 (out_type; f16 saturates at
// +-65504).
Status rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps, void* out,
               WType out_type, cudaStream_t stream);
// f32 [count] to f16 (saturating), bf16 or f32.
Status convert(const float* x, int64_t count, void* out, WType out_type, cudaStream_t stream);
// Rows [first, first + n) of w as [n][cols] of out_type (F32, F16 or BF16): prefill multiplies
// 16-bit tiles.
Status dequantize(const Matrix& w, int64_t first, int64_t n, void* out, WType out_type,
                  cudaStream_t stream);
// gate = silu(gate) * up elementwise; both of in_type (F32, F16, BF16); out of out_type may be gate
// itself if same type. Biases (or null) are [width] and are added to gate and up first; count is a
// multiple of width.
Status swiglu(const void* gate, const void* up, int64_t count, WType in_type, void* out,
              WType out_type, cudaStream_t stream, const float* gate_bias = nullptr,
              const float* up_bias = nullptr, int64_t width = 0);

// Rotates n_heads heads of each of n rows x[n][ld] to position pos0 + i.
// cos_sin[position][head_dim/2][2]. Pairs are (j, j + head_dim/2); interleaved: input pairs are
// (2j, 2j+1), output in (j, j + head_dim/2) order all the same.
Status rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
            int64_t pos0, bool interleaved, cudaStream_t stream);

// Sampling, one row of logits at a time; the semantics of engine/sampler.h (Sampler), whose random
// number in [0,1) the caller draws and passes. out[i]: the token, or -1 if a logit is NaN or none
// is above -inf.
struct SampleParams {
  float temperature, top_p, min_p;
  int32_t top_k;
  double random;
};
// logits [n][ld] of which the first vocab_size count (at most kSampleMaxVocab: else
// cudaErrorInvalidValue); params [n] (device); scratch: sample_scratch_bytes(n, vocab_size).
inline constexpr int64_t kSampleMaxVocab = 1 << 19;
size_t sample_scratch_bytes(int64_t n, int64_t vocab_size);
Status sample(const float* logits, int64_t n, int64_t ld, int64_t vocab_size,
              const SampleParams* params, int32_t* out, void* scratch, cudaStream_t stream);

// Synthetic weights: what kernels/common/synthetic.h says of element i, as on the CPU, written in
// the matrix's type.
Status fill_synthetic(Matrix w, uint64_t seed, float scale, cudaStream_t stream);

// ---- KV blocks
// ------------------------------------------------------------------------------------------------------

// A KV block: K[B][d] then V[B][d]; see kv/block_layout.h.
struct KvLayout {
  KvType type = KvType::F16;
  int block_size = 32, head_dim = 128;
  int64_t block_bytes = 0, value_offset = 0;  // bytes; value_offset: where V begins
};

// What the device knows of one sequence of a step. An array of these lies in device memory. Tables
// are [n_layers][n_kv_heads][max_blocks]; entry e = (layer * n_kv_heads + head) * max_blocks +
// block.
struct StepSequence {
  int32_t n_tokens = 0;  // the current token included; its position is n_tokens - 1
  int32_t table = 0;     // index into Pool::page_tables: names the blocks from prefix_blocks on
  // Names those before, which other sequences have, too (forks): the same host blocks at the same
  // entries.
  int32_t prefix_table = 0, prefix_blocks = 0;
  int64_t max_blocks = 0;
  std::byte* const* host = nullptr;   // pinned host blocks (readable from the device)
  const uint16_t* digests = nullptr;  // f16 [..][max_blocks][vectors][d], of full blocks
  int32_t vectors =
      2;  // of a digest: 2, or 3 where the mean key is kept as well (Stop::Veto needs it)
  const float* bound_factor = nullptr;  // [..][max_blocks]: R of kernels/cpu/kernels.h digest_build
  const std::byte* codes =
      nullptr;  // [..][max_blocks][int4_block_bytes]: INT4 keys; null: none are kept
  const uint16_t* value_means = nullptr;  // f16 [..][max_blocks][d], of full blocks; beside codes
  std::byte* votes =
      nullptr;  // [n_layers][vote_bytes]: tokenselect's last selections; null: none are kept
  std::byte* tail =
      nullptr;  // [n_layers][n_kv_heads] blocks: the newest block of each, being filled
  // [n_layers][n_kv_heads], 0 at first: positions that the row's last progressive step attended to.
  // So many are fetched at once, and tested in fewer passes; results do not depend on it. Null:
  // none is expected.
  int32_t* expected = nullptr;
  // [n_layers][n_kv_heads][max_blocks]: n_tokens of the last step that attended to the block, 0:
  // none has. Null unless DecodeStep::stamp or count_working_sets ask for it.
  uint32_t* last_use = nullptr;
};

// The last selection of a layer by vote; n_tokens 0: none. Then follow the query that voted, f32
// [n_heads * d], and of each block the tokens that are read beside those from `window` on, u64
// [max_blocks].
struct VoteState {
  int32_t n_tokens, window;  // of the sequence then; where the local tokens begin
  int32_t select, init, local, kind;
  float scale;
  int32_t unused;
};
__host__ __device__ constexpr int64_t vote_bytes(int64_t n_query, int64_t max_blocks) {
  return static_cast<int64_t>(sizeof(VoteState)) + 4 * n_query + 8 * max_blocks;
}

// The slot pool as the device sees it (device-side residency). All members point to device memory.
//   words[slot] = key(table, entry) << 24 | stamp: who owns the slot and the step that used it
//   last. kFreeWord: nobody. page_tables[table][entry] = slot or -1.
// Rules: a reader (a row's warp) may use a slot only after it has found words[slot] to be {its key,
// now}, or moved it there from {its key, any stamp} with a compare-and-swap. An evictor may take a
// slot only by moving words[slot] from {any key, stamp != now} to {its key, now} with a
// compare-and-swap; then it clears the loser's page-table entry with a compare-and-swap (slot ->
// -1), copies the block in, and enters itself into its own page table. So whatever a step uses
// stays for that step, and what it needs beyond the pool it reads from host memory without keeping
// it: the pool can never block a step, and never changes an answer. A key belongs to one row, or
// (prefix_blocks) to a row of each of several sequences. So an entry is written only after the
// bytes are there (__threadfence between), and who finds a slot stamped now has a fence before it
// reads. Rows that miss a block in the same step each take a slot: the last to enter itself is
// found from then on, the others' slots belong to a key that leads elsewhere, and become victims
// like all that is no longer used.
struct Pool {
  std::byte* slots = nullptr;  // [n_slots][block_bytes]
  int64_t n_slots = 0;
  unsigned long long* words = nullptr;  // [n_slots]
  int32_t** page_tables = nullptr;      // [kMaxTables]
  int32_t* victims =
      nullptr;  // [n_slots]: slots by last use, oldest first, as of the step's beginning
  int32_t* n_victims = nullptr;    // [1]
  int32_t* next_victim = nullptr;  // [1]: cursor, advanced by atomicAdd
  uint32_t* now = nullptr;         // [1]: stamp of this step, 1 to kMaxStamp
};
inline constexpr int kStampBits = 24, kMaxTables = 1024;
inline constexpr uint32_t kMaxStamp = (1u << kStampBits) - 1;
inline constexpr unsigned long long kFreeWord = ~0ull
                                                << kStampBits;  // stamp 0: older than everything
inline unsigned long long pool_key(int32_t table,
                                   int64_t entry) {  // 10 bits of table, 30 bits of entry
  return (static_cast<unsigned long long>(table) << 30 | static_cast<unsigned long long>(entry))
         << kStampBits;
}

// The victims of a step: *now += 1, then a counting sort of all slots by age (exact for the last
// kVictimBins - 1 steps; older ones and free slots count as equally old, free ones first). scratch:
// victims_scratch_bytes().
inline constexpr int kVictimBins = 4096;
size_t victims_scratch_bytes();
Status select_victims(const Pool& pool, void* scratch, cudaStream_t stream);

// forget.cu: a table forgets its blocks from `first` on: all slots with their keys become free.
// page_table: [n_heads][max_blocks].
Status forget_blocks(const Pool& pool, int32_t table, int32_t* page_table, int64_t n_heads,
                     int64_t max_blocks, int64_t first, cudaStream_t stream);

// rope.cu: decode. Row i of q [n][ldq] and k [n][ldk] is rotated to position sequences[i].n_tokens
// - 1 (q in place); k (rotated) and v [n][ldk] are written as KvType into the sequences' tails of
// this layer.
struct RopeAppendStep {
  float* q = nullptr;
  const float *k = nullptr, *v = nullptr;
  int64_t ldq = 0, ldk = 0;
  int n = 0, n_heads = 0, n_kv_heads = 0, layer = 0;
  const float* cos_sin = nullptr;
  bool interleaved = false;
  const StepSequence* sequences = nullptr;
  KvLayout layout;
  bool overlap = false;  // see Gemv::overlap
};
Status rope_append_step(const RopeAppendStep& args, cudaStream_t stream);

// rope.cu: prefill. k [n][ldk] is rotated to positions pos0 + i and, with v, written into blocks,
// contiguous [n_kv_heads][n_blocks] of block_bytes.
Status rope_append_prefill(const float* k, const float* v, int64_t n, int64_t ldk, int n_kv_heads,
                           const float* cos_sin, int64_t pos0, bool interleaved, std::byte* blocks,
                           int64_t n_blocks, const KvLayout& layout, cudaStream_t stream);

// digest.cu: digests of full blocks, the twin of kernels/cpu digest_build bit for bit. Blocks lie
// at base + (h * n_blocks + b) * block_bytes for h < n_kv_heads; those with first <= b < last are
// read, and written to digests + (h * max_blocks + b) * stride (f16 values) and bound_factor[h *
// max_blocks + b].
Status build_digests(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                     int n_kv_heads, const KvLayout& layout, DigestKind kind, bool with_mean,
                     uint16_t* digests, int64_t stride, float* bound_factor, int64_t max_blocks,
                     cudaStream_t stream);

// int4.cu: INT4 keys of blocks that lie as for build_digests, the twin of kernels/cpu int4_encode
// bit for bit; written to codes + (h * max_blocks + b) * int4_block_bytes
// (kernels/cuda/select/int4.cuh).
Status encode_int4(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream);

// value_means.cu: the mean value of each of these blocks, f16, to means + (h * max_blocks + b) * d.
Status mean_values(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, uint16_t* means, int64_t max_blocks,
                   cudaStream_t stream);

// ---- decode attention: score.cu rank.cu estimate.cu top_p_scores.cu top_p.cu vote.cu attend.cu
// ---------------------- A row is (sequence i, KV head h), row = i * n_kv_heads + h, with its g =
// n_heads / n_kv_heads query heads (g <= 8). Positions of a row's order: forced blocks first
// (sinks, window, tail, in token order), then the candidates (the full blocks between sinks and
// window), most critical first, ties to the lower block: select/selector.h RowPlan. Mode
// Everything: all blocks that hold a token which the query sees, in token order, are forced.
//
// A row has kRowWarps warps whatever the device; position p belongs to warp p % kRowWarps, which
// keeps one online-softmax state for all its positions; the states are merged in warp order at the
// end. So the result depends on the order alone.

inline constexpr int kRowWarps = 64;

// tokenselect: the tokens that all heads of a layer vote for, the first and the last ones
// (select/tokenselect.cpp).
struct VoteRule {
  int32_t select = 0, init = 0, local = 1;  // tokens; select 0: no vote
  VoteKind kind = VoteKind::Soft;
  float scale = 1, cache_threshold = 2;
};

struct Ranked {
  bool everything = false;  // dense: no ranking at all
  int window = 0;  // with everything: so many of the last tokens are what the query sees; 0: all
  int sink_blocks = 1, window_blocks = 2;
  bool progressive = false;  // psa: test after each microbatch; else one shot (topk)
  double budget =
      0;  // one shot: <= 1 a share of the tokens, > 1 tokens; as select/topk.cpp computes blocks
  DigestKind digest = DigestKind::CuboidMean;
  Gqa gqa = Gqa::Mean;
  bool rank_codes = false;  // ranked by the masses that INT4 keys give the blocks, not by digests
  Stop stop = Stop::Paper;
  double slack = 0;  // log((1 - epsilon) / epsilon)
  int microbatch = 16;
  // share: no ranking; one shot reads the candidates that hold 2^log2_share of some head's weight,
  // by their INT4 keys; in rows of more than share_blocks blocks share_blocks / blocks of that.
  bool by_share = false;
  float log2_share = 0;
  int share_blocks = 1 << 30;
  // twilight: > 0: of the blocks that the words above choose (a progressive test looks at masses by
  // INT4 keys; Paper or Window) the fewest tokens that hold this share of each head's weight, as
  // INT4 keys tell; the union of the heads'.
  double top_p = 0;
  VoteRule vote;  // instead of all of the above, if it selects any (sink_blocks and window_blocks
                  // are 0, budget is 1)
};

struct RowResult {                   // per row, written by the kernel
  int32_t n_blocks = 0, n_read = 0;  // blocks held; positions attended
  // Of the pool (the tail is not looked up). Blocks that were fetched as expected, but not attended
  // to, count in both.
  int32_t lookups = 0, misses = 0;
  int32_t n_tokens = -1;    // Ranked::top_p, vote: tokens attended to; -1: all of the blocks
  int32_t cached = 0;       // vote: an earlier selection was used again
  int32_t working_set = 0;  // blocks; 0 until count_working_sets
};

struct DecodeStep {
  int n = 0;  // sequences
  int layer = 0, n_layers = 0, n_heads = 0, n_kv_heads = 0;
  int64_t max_blocks = 0;  // most blocks any sequence may come to hold: sizes the scratch
  const StepSequence* sequences = nullptr;  // [n], device
  const float* q = nullptr;                 // [n][n_heads * d], after RoPE, not scaled
  float* out = nullptr;                     // [n][n_heads * d]
  KvLayout layout;
  Ranked ranked;
  Pool pool;
  void* scratch = nullptr;       // decode_scratch_bytes; need not be cleared
  RowResult* results = nullptr;  // [n * n_kv_heads]
  int32_t* order =
      nullptr;  // [n * n_kv_heads][max_blocks]: blocks in the order attended; null: not wanted
  // [n * n_kv_heads][max_blocks], by block: bit t says whether to attend to its token t (of those
  // held; one at least). Null: to all. Whole blocks are fetched all the same, once for a row's
  // heads.
  const uint64_t* masks = nullptr;
  float* lse = nullptr;       // [n * n_heads]: log-sum-exp of what was attended; null: not wanted
  cudaEvent_t marks[2] = {};  // recorded after the scores and after the ranking; null: not wanted
  bool overlap = false;       // launch as dependents of the kernel before, see Gemv::overlap
  uint32_t* arrivals =
      nullptr;  // [n * n_kv_heads], 0 before and after a step; null: costs a memset if not ranked
  // [1], 0 before: the CTAs of a row wait for each other, which never ends if kernels of other
  // streams keep some of them from the GPU. After about 2 s they set this and leave; then the
  // step's results mean nothing. Null: they wait for ever.
  uint32_t* fault = nullptr;
  bool stamp =
      false;  // enter the blocks attended to in the sequences' last_use; not for host-driven steps
};

// n_sm and shared memory limits come from the caller, which asks the device once.
struct DeviceLimits {
  int n_sm = 0;
  int smem_per_block = 0;  // opt-in limit, bytes
  int smem_per_sm = 0;
  int compute = 0;  // 10 * major + minor
};

// cudaErrorNotSupported for a head_dim, group or block size that the kernels do not have, or not on
// a device of these limits (which must be the current one): each of a CTA's warps has a block in
// shared memory, or its keys and then its values.
Status decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits);
// For step.n, max_blocks and any Ranked, but for top_p and vote: those take 4 more bytes a token
// and query head.
size_t decode_scratch_bytes(const DecodeStep& step);
// The whole of decode attention for one layer: score the digests, rank, attend progressively with
// device-side residency (hits from slots, misses straight from pinned host memory, kept in a
// victim's slot), test, merge, normalise. No host.
Status attend_decode(const DecodeStep& step, const DeviceLimits& limits, cudaStream_t stream);

// working_set.cu: at the end of a step that stamped what it attended to: each row's blocks that one
// of the last `window` steps of its sequence attended to, this one included, into its result
// (SparseServe 3.3). A step is known by its n_tokens, so a sequence need not be in every step.
// Reads 4 bytes for each block held, in all layers: 4 MiB for 128K tokens in blocks of 32, 32
// layers and 8 KV heads, about 2 us at an H200's bandwidth beside the launch.
struct WorkingSets {
  int n = 0, n_layers = 0, n_kv_heads = 0, block_size = 0;
  int window = 0;                           // steps, > 0
  const StepSequence* sequences = nullptr;  // [n], device
  RowResult* results = nullptr;             // [n_layers][n][n_kv_heads]
};
Status count_working_sets(const WorkingSets& args, cudaStream_t stream);

// ---- the same in pieces, driven by the host (pipelined PSA, algorithms.md 2.3)
// ------------------------------------------- rank_rows: begins a step: scores, and at least the
// first `first` positions of every row ranked -> order (forced blocks first) and counts. The host
// reads both to look blocks up. attend_positions: positions [begin, end) of rows that are not done,
// sources given (the tail's is not used: it comes from the sequence); updates the warps' states in
// scratch and publishes masses. verify_rows: after [begin, end), tests, sets done[row] (also when
// the row has read all it may) and results (lookups and misses 0); when no row is left it stores
// epoch into *flag (mapped pinned host memory) after __threadfence_system(). Ranges: the forced
// blocks (sinks + window + 1) first, then microbatches. finish_rows: merges the warps' states into
// out and lse.
struct HostStep {
  DecodeStep step;  // pool and order unused; scratch: host_scratch_bytes, need not be cleared
  int32_t* order = nullptr;   // [rows][max_blocks]
  int32_t* counts = nullptr;  // [rows][2]: n_forced, n_total
  const std::byte* const* sources =
      nullptr;  // [rows][max_positions] device or pinned pointers, of positions [begin, end)
  int64_t max_positions = 0;
  int32_t* done = nullptr;      // [rows]
  int32_t* n_active = nullptr;  // [1]
};
size_t host_scratch_bytes(const DecodeStep& step);
Status rank_rows(const HostStep& step, int32_t first, const DeviceLimits& limits,
                 cudaStream_t stream);
// Extends the rows' orders so that positions below `want` are ranked.
Status rank_more(const HostStep& step, int32_t want, const DeviceLimits& limits,
                 cudaStream_t stream);
Status attend_positions(const HostStep& step, int32_t begin, int32_t end,
                        const DeviceLimits& limits, cudaStream_t stream);
Status verify_rows(const HostStep& step, int32_t begin, int32_t end, uint32_t* flag, uint32_t epoch,
                   cudaStream_t stream);
Status finish_rows(const HostStep& step, const DeviceLimits& limits, cudaStream_t stream);

// ---- moving blocks: gather.cu
// --------------------------------------------------------------------------------------------

struct Copy {
  const std::byte* src;
  std::byte* dst;
};
// FlashH2D (SparseServe 3.2): copies[i] (device or pinned array) of block_bytes each (a multiple of
// 16), one CTA a block at a time; src or dst may be pinned host memory. FlashD2H's device scatter
// is the same kernel the other way.
Status gather(const Copy* copies, int64_t n, int64_t block_bytes, int n_sm, cudaStream_t stream);

// seal.cu: the tails of one sequence have become full: copies each (layer, head) tail to its pinned
// host block `block`, builds its digest, and, if a victim's slot can be had, keeps it in the pool.
struct Seal {
  StepSequence sequence;  // by value: host pointers of the table are device-readable
  uint16_t* digests = nullptr;
  float* bound_factor = nullptr;
  std::byte* codes = nullptr;       // null: none are kept
  uint16_t* value_means = nullptr;  // beside codes
  int64_t block = 0;
  int n_layers = 0, n_kv_heads = 0;
  KvLayout layout;
  DigestKind digest = DigestKind::CuboidMean;
  bool with_mean = false;
  Pool pool;  // n_slots 0: host only
  bool to_host = true;
};
Status seal_tails(const Seal& args, cudaStream_t stream);

// ---- prefill: flash_prefill.cu
// -------------------------------------------------------------------------------------------

// Causal attention of n queries at positions pos0.., each over the last `window` keys up to its own
// (0: over all), in blocks [n_kv_heads][n_blocks] (contiguous, block_bytes apart) that hold the
// keys of all positions < pos0 + n. q f32 [n][ldq] after RoPE, not scaled; out [n][ldo] of
// out_type. KvType F16: tensor cores (mma, f16 operands, f32 sums), online softmax in f32. KvType
// F32: f32 throughout.
struct FlashPrefill {
  const float* q = nullptr;
  int64_t n = 0, ldq = 0, pos0 = 0, window = 0;
  int n_heads = 0, n_kv_heads = 0;
  const std::byte* blocks = nullptr;
  int64_t n_blocks = 0;
  KvLayout layout;
  void* out = nullptr;
  int64_t ldo = 0;
  WType out_type = WType::F32;
};
Status flash_prefill(const FlashPrefill& args, const DeviceLimits& limits, cudaStream_t stream);

// trace.cu: synthetic attention, see backend/synthetic_attention.h for the definition that the CPU
// shares (same bits). cudaErrorInvalidValue for a head_dim that is no multiple of 4 or above
// kTraceMaxDim.
inline constexpr int kTraceMaxDim = 512;
struct TraceSpec {
  uint64_t seed = 0;
  int clusters = 0,
      active =
          0;  // a block belongs to one of `clusters` directions; a query looks at `active` of them
  float overlap = 0;  // expected share of active clusters kept from one step to the next
  float gain = 0;     // score of a key of an active cluster above the others
};
// Keys and values of positions pos0 to pos0 + n - 1 of one layer into blocks, contiguous
// [n_kv_heads][n_blocks] of block_bytes; block b holds positions b * block_size...
Status trace_keys(const TraceSpec& spec, int layer, int64_t pos0, int64_t n, int n_kv_heads,
                  std::byte* blocks, int64_t n_blocks, const KvLayout& layout, cudaStream_t stream);
// A step: overwrites q [n][ldq] (as after RoPE, not scaled), and the newest token's k and v in the
// sequences' tails of this layer. sequences: device.
Status trace_step(const TraceSpec& spec, int layer, const StepSequence* sequences, int n,
                  int n_heads, int n_kv_heads, const KvLayout& layout, float* q, int64_t ldq,
                  cudaStream_t stream);

}  // namespace riffle::cuda
