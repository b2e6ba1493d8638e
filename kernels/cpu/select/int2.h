// 2-bit codes of keys (src/select/README.md, 2-bit keys). Every instruction set compiles these
// plain loops for itself, and all give the same bits.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/common/hadamard.h"
#include "kernels/common/half.h"
#include "kernels/cpu/select/int4.h"
#include "kernels/cpu/select/select.h"

namespace riffle::cpu {

// Returns the sum of 16 partial sums. The order is fixed, so every instruction set gives the same
// bits.
static inline float sum_of_parts(float (&part)[16]) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

// Loads a key, rotated: KV in Q8 is stored rotated. Numbers beyond 65504 are clamped, and a NaN
// becomes 0.
static inline void int2_load(void (*load)(const void*, int64_t, int64_t, int64_t, KvType, float*),
                             const char* row, KvType type, int d, float* key) {
  load(row, d, 0, d, type, key);
  for (int j = 0; j < d; j++) {
    const float low = key[j] > -65504.0f ? key[j] : key[j] <= -65504.0f ? -65504.0f : 0;
    key[j] = low < 65504.0f ? low : 65504.0f;
  }
  if (type != KvType::Q8) hadamard(key, d);
}

static inline void int2_query_impl(const float* q, int g, int d, void* query) {
  int4_query_impl(q, g, d, query);
  auto* bytes = static_cast<char*>(query);
  const char* digits = bytes + int4_query_digits(g);
  char* repeated = bytes + int2_repeated_at(g, d);
  auto* pairs = reinterpret_cast<int16_t*>(bytes + int2_pairs_at(g, d));
  for (int quad = 0; quad < 4 * int2_words(d); quad++)
    for (int h = 0; h < g; h++, repeated += 32, pairs += 4) {
      const char *hi = digits + (int64_t(quad) * 2 * g + h) * 4, *lo = hi + int64_t(g) * 4;
      for (int i = 0; i < 8; i++) __builtin_memcpy(repeated + 4 * i, hi, 4);
      for (int i = 0; i < 4; i++) {
        const int j = i % 2 * 2 + i / 2;
        pairs[i] =
            static_cast<int16_t>(256 * static_cast<int8_t>(hi[j]) + static_cast<int8_t>(lo[j]));
      }
    }
}

// int2_totals returns the totals of a query.
// int2_joined returns the product of a query and a block's means. hi and lo are the products of the
// query's upper and lower digits with the means plus 128.
// int2_centre returns 1.5 times the total of the upper digits. The product of these digits and the
// codes, less it, is their product with the codes less 1.5.
static inline const int32_t* int2_totals(const void* query, int g, int d) {
  return reinterpret_cast<const int32_t*>(static_cast<const char*>(query) + int4_query_digits(g) +
                                          int4_digit_bytes(g, d));
}
static inline float int2_joined(int32_t hi, int32_t lo, int32_t total) {
  return (256 * static_cast<float>(hi) + static_cast<float>(lo)) - 128 * static_cast<float>(total);
}
static inline float int2_centre(int32_t total) { return 1.5f * static_cast<float>(total); }

static inline void int2_encode_impl(void (*load)(const void*, int64_t, int64_t, int64_t, KvType,
                                                 float*),
                                    const void* k, KvType type, int block_size, int d,
                                    const Int2Block& out) {
  constexpr int kKept = 64 * 512;  // numbers: 64 tokens of heads of 512
  float keys[kKept], mean[kInt2Dims];
  const int padded = int2_words(d) * 16;
  const int64_t row_bytes = kv_row_bytes(type, d);
  const bool keeps = block_size * padded <= kKept;  // else each key is loaded twice
  for (int j = 0; j < padded; j++) mean[j] = 0;
  const auto load_key = [&](int t, float* key) {
    int2_load(load, static_cast<const char*>(k) + t * row_bytes, type, d, key);
    for (int j = d; j < padded; j++) key[j] = 0;
  };
  for (int t = 0; t < block_size; t++) {
    float* key = keys + (keeps ? int64_t(t) * padded : 0);
    load_key(t, key);
    for (int j = 0; j < padded; j++) mean[j] += key[j];
  }
  float largest = 0;
  for (int j = 0; j < padded; j++) {
    mean[j] /= static_cast<float>(block_size);
    const float size = __builtin_fabsf(mean[j]);
    largest = size > largest ? size : largest;
  }
  const float step = largest / 127, inverse = step > 0 ? 1 / step : 0;
  for (int j = 0; j < padded; j++) {
    const float x = mean[j] * inverse;
    const float inside = x > -127 ? (x < 127 ? x : 127) : -127;
    const auto whole = static_cast<int32_t>(inside < 0 ? inside - 0.5f : inside + 0.5f);
    mean[j] = step * static_cast<float>(whole);
    out.means[j / 4 * 64 + out.lane * 4 + j % 4] = static_cast<uint8_t>(whole + 128);
  }
  *out.mean_scale = step;

  for (int t = 0; t < block_size; t++) {
    float* key = keys + (keeps ? int64_t(t) * padded : 0);
    if (!keeps) load_key(t, key);
    float part[16] = {};
    for (int j0 = 0; j0 < padded; j0 += 16)
      for (int i = 0; i < 16; i++) {
        key[j0 + i] -= mean[j0 + i];
        part[i] += key[j0 + i] * key[j0 + i];
      }
    const float squares = sum_of_parts(part);
    const float size = __builtin_sqrtf(squares / static_cast<float>(d));
    const float per_step = size > 0 ? 1 / (size * kInt2Step) : 0;
    uint8_t* group = out.codes + t / kInt4Group * int2_group_bytes(d) + t % kInt4Group * 4;
    for (int i = 0; i < 16; i++) part[i] = 0;
    for (int w = 0; w < padded / 16; w++) {
      int32_t code[16];
      for (int i = 0; i < 16; i++) {
        float x = key[16 * w + i] * per_step + 2;
        x = x > 0 ? x : 0;  // a NaN becomes 0 here
        code[i] = static_cast<int32_t>(x < 3 ? x : 3);
        part[i] += key[16 * w + i] * (static_cast<float>(code[i]) - 1.5f);
      }
      for (int i = 0; i < 4; i++)
        group[w * 64 + i] =
            static_cast<uint8_t>(code[i] | code[4 + i] << 2 | code[8 + i] << 4 | code[12 + i] << 6);
    }
    // With this scale the decoded rest has the product |r|^2 with the rest r. The scale of least
    // error makes it an eighth smaller, and so the scores of queries that point along r.
    const float scale = squares / sum_of_parts(part);
    out.scales[t] = f32_to_f16(scale > 0 ? (scale < 65504.0f ? scale : 65504.0f) : 0);
  }
}

}  // namespace riffle::cpu
