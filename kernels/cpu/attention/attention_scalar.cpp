// Attention in plain C++: the readable copy of every kernel, and the reference of all tests. Sums
// run in index order in f32. Online softmax as in Milakov and Gimelshein, arXiv 1805.02867; merging
// as in FlashDecoding.
#include <cmath>
#include <cstring>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/tile_choice.h"
#include "kernels/cpu/select/digest_build.h"
#include "kernels/cpu/simd/scalar.h"

namespace riffle::cpu {
namespace {

// exp(a - b) where b >= a; an empty part (a = -inf) weighs nothing, even against another empty one.
float weight(float a, float b) { return a == -INFINITY ? 0.0f : std::exp(a - b); }

// Factors of two parts' values when the parts are merged.
struct MergeFactors {
  float before, now;
};

// Merges a part's largest score and sum of weights into m and s.
MergeFactors merge_states(float* m, float* s, float m_part, float s_part) {
  const float top = std::fmax(*m, m_part);
  const MergeFactors f = {weight(*m, top), weight(m_part, top)};
  *s = *s * f.before + s_part * f.now;
  *m = top;
  return f;
}

void attend_block(const float* q, int g, int d, const void* block, KvType type, int block_size,
                  int64_t value_at, uint64_t mask, AttendState* state, float* l_block,
                  const void* /*next*/) {
  const int64_t row_bytes = kv_row_bytes(type, d);
  const auto* keys = static_cast<const char*>(block);
  const char* values = keys + value_at;
  for (int h = 0; h < g; h++) {
    float score[64], largest = -INFINITY, sum = 0;
    for (int t = 0; t < block_size; t++) {
      if (!(mask >> t & 1)) continue;  // not even read: it may be uninitialised
      score[t] = 0;
      for (int j = 0; j < d; j++)
        score[t] += q[h * d + j] * kv_at(keys + t * row_bytes, d, type, j);
      largest = std::fmax(largest, score[t]);
    }
    if (mask == 0) {
      l_block[h] = -INFINITY;
      continue;
    }
    for (int t = 0; t < block_size; t++)
      if (mask >> t & 1) sum += score[t] = weight(score[t], largest);
    l_block[h] = largest + std::log(sum);

    const MergeFactors f = merge_states(&state->m[h], &state->s[h], largest, sum);
    for (int j = 0; j < d; j++) {
      float o = 0;
      for (int t = 0; t < block_size; t++)
        if (mask >> t & 1) o += score[t] * kv_at(values + t * row_bytes, d, type, j);
      state->o[h * d + j] = state->o[h * d + j] * f.before + o * f.now;
    }
  }
}

void merge(AttendState* a, const AttendState* b, int g, int d) {
  for (int h = 0; h < g; h++) {
    const MergeFactors f = merge_states(a->m + h, a->s + h, b->m[h], b->s[h]);
    float *to = a->o + h * d, *part = b->o + h * d;
    for (int j = 0; j < d; j++) to[j] = to[j] * f.before + part[j] * f.now;
  }
}

int prefill_tile(int g, int) { return g < 64 ? 64 / g : 1; }

// Returns the bytes of K[block_size][d] and V[block_size][d] of one block in f32, and of m and s of
// each row.
size_t prefill_scratch_bytes(int n_q, int g, int d, int block_size) {
  return sizeof(float) *
         (2 * static_cast<size_t>(block_size) * d + 2 * static_cast<size_t>(n_q) * g);
}

void attend_prefill(const float* q, int64_t ldq, int n_q, int g, int d, int64_t pos0,
                    int64_t window, const uint64_t* tiles, const void* const* blocks,
                    int block_size, KvType type, int64_t value_at, const float* sinks, float* out,
                    int64_t ldo, void* scratch) {
  const int64_t n_keys = pos0 + n_q, row_bytes = kv_row_bytes(type, d);
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  auto* k = static_cast<float*>(scratch);
  float *v = k + static_cast<int64_t>(block_size) * d,
        *m = v + static_cast<int64_t>(block_size) * d, *s = m + n_q * g;
  for (int i = 0; i < n_q; i++) {
    std::memset(out + i * ldo, 0, sizeof(float) * g * d);
    for (int h = 0; h < g; h++) m[i * g + h] = -INFINITY, s[i * g + h] = 0;
  }
  const int64_t seen_from =
      window > 0 && pos0 >= window ? pos0 - window + 1 : 0;  // first key in any window
  for (int64_t t0 = seen_from / block_size * block_size; t0 < n_keys; t0 += block_size) {
    if (!has_tile(tiles, t0)) continue;
    const auto* block = static_cast<const char*>(blocks[t0 / block_size]);
    for (int64_t t = 0; t < block_size; t++) {
      kv_load(block + t * row_bytes, d, type, k + t * d);
      kv_load(block + t * row_bytes + value_at, d, type, v + t * d);
    }
    for (int row = 0; row < n_q * g; row++) {
      const int i = row / g, h = row % g;
      // The row sees keys [begin, n) of this block.
      const int n = static_cast<int>(std::fmin(block_size, pos0 + i - t0 + 1));
      const int begin = window > 0 ? static_cast<int>(std::fmax(0, pos0 + i - window + 1 - t0)) : 0;
      if (n <= begin) continue;
      const float* q_row = q + i * ldq + h * d;
      float* o = out + i * ldo + h * d;
      float score[64], largest = m[row];
      for (int t = begin; t < n; t++) {
        score[t] = 0;
        for (int j = 0; j < d; j++) score[t] += q_row[j] * scale * k[t * d + j];
        largest = std::fmax(largest, score[t]);
      }
      const float w = weight(m[row], largest);
      for (int j = 0; j < d; j++) o[j] *= w;
      s[row] *= w;
      for (int t = begin; t < n; t++) {
        const float p = weight(score[t], largest);
        s[row] += p;
        for (int j = 0; j < d; j++) o[j] += p * v[t * d + j];
      }
      m[row] = largest;
    }
  }
  for (int row = 0; row < n_q * g; row++) {
    float* o = out + row / g * ldo + row % g * d;
    if (sinks != nullptr) s[row] += std::exp(sinks[row % g] - m[row]);
    for (int j = 0; j < d; j++) o[j] /= s[row];
  }
}

void kv_store(const float* src, int64_t count, KvType type, void* dst) {
  if (type == KvType::Q8) return q8_store_row(src, count, dst);
  for (int64_t i = 0; i < count; i++) {
    if (type == KvType::F16) static_cast<uint16_t*>(dst)[i] = f32_to_f16(src[i]);
    else static_cast<float*>(dst)[i] = src[i];
  }
}

float digest_build(const void* k, KvType type, int block_size, int d, DigestKind kind,
                   bool with_mean, uint16_t* out) {
  return digest_build_impl(kv_load_part, k, type, block_size, d, kind, with_mean, out);
}

void digest_score(const uint16_t* digests, int64_t stride, int64_t n, int d, const float* q,
                  const float* q_abs, float* scores) {
  for (int64_t b = 0; b < n; b++) {
    const uint16_t* digest = digests + b * stride;
    float score = 0;
    for (int j = 0; j < d; j++) score += q[j] * f16_to_f32(digest[j]);
    for (int j = 0; q_abs != nullptr && j < d; j++) score += q_abs[j] * f16_to_f32(digest[d + j]);
    scores[b] = score;
  }
}

size_t choice_scratch_bytes(int64_t n_keys, int) {
  return sizeof(float) * static_cast<size_t>(n_keys / kKeyTile);
}

void choose_tiles(const float* q, int64_t ldq, int n_q, int d, int64_t pos0, const float* means,
                  float share, uint64_t* tiles, void* scratch) {
  const int64_t near = first_near_tile(pos0);
  begin_choice(tiles, near, (pos0 + n_q - 1) / kKeyTile + 1);
  if (near <= 1) return;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  auto* scores = static_cast<float*>(scratch);
  for (int i = 0; i < n_q; i++) {
    float top = -INFINITY, sum = 0;
    for (int64_t tile = 0; tile < pos0 / kKeyTile; tile++) {
      scores[tile] = 0;
      for (int j = 0; j < d; j++) scores[tile] += q[i * ldq + j] * scale * means[tile * d + j];
      merge_states(&top, &sum, scores[tile], 1);
    }
    const float least = top + std::log(sum * share);  // at which a tile has just this share
    for (int64_t tile = 1; tile < near; tile++)
      if (least < scores[tile]) mark_tile(tiles, tile);
  }
}

}  // namespace

void attention_scalar(AttentionKernels* k) {
  *k = {attend_block,          merge,          prefill_tile,
        prefill_scratch_bytes, attend_prefill, choice_scratch_bytes,
        choose_tiles,          kv_store,       kv_load,
        digest_build,          digest_score};
}

}  // namespace riffle::cpu
