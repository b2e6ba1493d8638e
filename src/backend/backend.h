// The whole contract between the engine and a device.
//
// Memory   Pointers given to an operation are the backend's own (allocate), but for tokens and tensors of the model file,
//          which are host memory.
// Order    Operations run in the order they are called; a backend may run them later, but host() waits.
// Numbers  f32 activations. A result belongs to its own row (token, query): the same bits whatever else is in the batch,
//          however a prompt is cut into chunks, for any number of threads, any pool and any eviction policy.
// Errors   Error with RIFFLE_OUT_OF_MEMORY, RIFFLE_NO_SLOT or RIFFLE_INTERNAL; nothing aborts. After an error the
//          backend stays usable.
#pragma once
#include <cstdint>
#include <memory>

#include "kv/kv_store.h"
#include "kv/residency.h"
#include "model/model.h"
#include "select/selector.h"
#include "util/buffer.h"
#include "util/thread_pool.h"

namespace riffle {

enum class Phase : uint8_t { Decode, Prefill };  // few rows, bound by memory; many rows, bound by arithmetic

// One product of linear(): y[i*ldy + r] = W[r] . x_i.
struct LinearOut {
  const Tensor* weight = nullptr;
  float* y = nullptr;
  int64_t ldy = 0;
};

struct PrefillAttention {
  const float* q = nullptr;  // [n][ldq], heads of head_dim; after RoPE, not scaled
  int64_t n = 0, ldq = 0;
  int64_t pos0 = 0;          // position of the first query
  int n_heads = 0;
  std::byte* const* blocks = nullptr;  // [n_kv_heads][n_blocks], holding keys of all positions < pos0 + n
  int64_t n_blocks = 0;
  float* out = nullptr;      // [n][ldo]
  int64_t ldo = 0;
};

// What a decode step read, per row; the trace callback sees it.
struct RowReport {
  int n_blocks = 0, n_read = 0;
  int lookups = 0, misses = 0;      // of the pool
  const int32_t* blocks = nullptr;  // [n_read]
  const float* coverage = nullptr;  // [g], or null
};

struct DecodeAttention {
  int layer = 0;
  SequenceKv* const* sequences = nullptr;  // [n]
  int64_t n = 0;
  const float* q = nullptr;  // [n][n_heads * head_dim], after RoPE, not scaled; the current token's k, v are in the tails
  int n_heads = 0;
  float* out = nullptr;      // [n][n_heads * head_dim]
  const Selector* selector = nullptr;
  int lookahead = 0;         // microbatches loaded ahead of the test
  bool coverage = false;     // also measure what share of the attention weight was covered
  RowReport* reports = nullptr;  // [n][n_kv_heads], valid until the next operation
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;    // "cpu", "emu"
  virtual const char* detail() const = 0;  // instruction set or device

  virtual Buffer allocate(size_t bytes) = 0;

  // x[i] = row tokens[i] of the table.
  virtual void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) = 0;
  virtual void rmsnorm(const float* x, const Tensor& weight, int64_t n, float eps, float* out) = 0;
  // Up to kMaxLinearOuts products of the same x [n][cols].
  static constexpr int kMaxLinearOuts = 3;
  virtual void linear(const LinearOut* outs, int n_outs, const float* x, int64_t n, Phase phase) = 0;
  // Rotates n_heads heads of each of n rows x[n][ld] to position pos[i] < the capacity set by rope_table.
  virtual void rope(float* x, int64_t n, int64_t ld, int n_heads, const int32_t* pos) = 0;
  virtual void swiglu(float* gate, const float* up, int64_t count) = 0;
  virtual void add(float* x, const float* y, int64_t count) = 0;

  // Prefill: k, v [n][n_kv_heads*head_dim] of positions pos0.. into blocks [n_kv_heads][n_blocks].
  virtual void append(const float* k, const float* v, int64_t n, int64_t pos0, std::byte* const* blocks,
                      int64_t n_blocks) = 0;
  // Decode: k, v [n][n_kv_heads*head_dim], one token for each sequence, into the tails of a layer.
  virtual void append_tails(const float* k, const float* v, SequenceKv* const* sequences, int64_t n, int layer) = 0;
  virtual void attend_prefill(const PrefillAttention& args) = 0;
  virtual void attend_decode(const DecodeAttention& args) = 0;

  // Cosines and sines for positions below n.
  virtual void rope_table(int64_t n) = 0;

  // One block, attended one microbatch at a time, is the least a row needs; see engine/memory_plan.
  virtual KvStore& store() = 0;
  virtual Residency& residency() = 0;
};

struct CpuBackendOptions {
  cpu::Isa isa = cpu::Isa::Scalar;
  BlockLayout layout;
  bool emulate = false;  // a pool of `slots` in front of the host store
  int64_t slots = 0;
  EvictPolicy evict = EvictPolicy::Lru;
  bool pool_per_layer = false;
};

std::unique_ptr<Backend> make_cpu_backend(const Config& config, const CpuBackendOptions& options, ThreadPool* threads);

}  // namespace riffle
