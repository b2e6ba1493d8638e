#include "quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/common/half.h"
#include "kernels/cpu/linear/quants.h"
#include "util/error.h"
#include "util/thread_pool.h"

namespace riffle {
namespace {

using cpu::f16_to_f32;
using cpu::f32_to_f16;

// A scale that f16 cannot hold.
struct TooLarge {};

uint16_t put_f16(uint8_t* p, float v) {
  const uint16_t h = f32_to_f16(v);
  if ((h & 0x7fff) >= 0x7c00) throw TooLarge();
  std::memcpy(p, &h, 2);
  return h;
}

// ---- the canonical types ----

template <DType T>
void q_bytes(const float* x, uint8_t* b) {
  constexpr DTypeInfo info = dtype_info(T);
  float largest = 0;
  for (int j = 0; j < 32; ++j) largest = std::max(largest, std::fabs(x[j]));
  const float d = largest / 127, inverse = 1 / d;
  put_f16(b + info.d_at, d);
  for (int j = 0; j < 32; ++j) {
    const float q = std::isfinite(inverse) ? std::round(x[j] * inverse) : 0;
    b[info.codes_at + j] =
        static_cast<uint8_t>(static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
  }
}

// Codes with an offset: the value of largest magnitude (the first of them) becomes the lowest code,
// -half.
template <DType T>
void q_symmetric(const float* x, uint8_t* b) {
  constexpr int half = dtype_info(T).offset;
  float most = x[0];
  for (int j = 1; j < 32; ++j)
    if (std::fabs(x[j]) > std::fabs(most)) most = x[j];
  const float d = most / static_cast<float>(-half), inverse = 1 / d;
  put_f16(b + dtype_info(T).d_at, d);
  for (int j = 0; j < 32; ++j) {
    const double v = std::isfinite(inverse) ? static_cast<double>(x[j]) * inverse : 0.0;
    const float q = static_cast<float>(v + half + 0.5);  // rounded to f32 before truncation
    cpu::put_code<T>(b, j,
                     static_cast<uint8_t>(std::clamp(q, 0.0f, static_cast<float>(2 * half - 1))));
  }
}

// Codes with a minimum: from the smallest to the largest value.
template <DType T>
void q_range(const float* x, uint8_t* b) {
  constexpr DTypeInfo info = dtype_info(T);
  constexpr float top = (1 << info.bits()) - 1;
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float d = (*high - *low) / top, inverse = 1 / d;
  put_f16(b + info.d_at, d);
  put_f16(b + info.dmin_at, *low);
  for (int j = 0; j < 32; ++j) {
    const float q = std::isfinite(inverse) ? (x[j] - *low) * inverse + 0.5f : 0;
    cpu::put_code<T>(b, j, static_cast<uint8_t>(std::clamp(q, 0.0f, top)));
  }
}

// ---- the K types ----
// Four values at a time. Every sum runs in the same order.

using F4 = float __attribute__((vector_size(16)));

F4 load(const float* p) {
  F4 v;
  std::memcpy(&v, p, 16);
  return v;
}
float sum(F4 v) { return (v[0] + v[2]) + (v[1] + v[3]); }
F4 least(F4 a, F4 b) { return a < b ? a : b; }
F4 most(F4 a, F4 b) { return a < b ? b : a; }
// Nearest integer, ties to even, for |v| < 2^22.
F4 nearest(F4 v) { return v + 0x1.8p23f - 0x1.8p23f; }

// Gives the codes of values for a scale and an offset: nearest integers to (x - offset) inverse in
// [low, high].
struct Grid {
  float inverse, offset, low, high;
  F4 code(F4 x) const {
    const F4 bottom = {low, low, low, low}, top = {high, high, high, high};
    return nearest(least(most((x - offset) * inverse, bottom), top));
  }
};
Grid grid_of(float scale, float offset, float low, float high) {
  const float inverse = 1 / scale;
  return {std::isfinite(inverse) ? inverse : 0, offset, low, high};
}

// Returns the weighted error of x ~ scale * code + offset.
float error_of(const float* x, const float* w, int n, const Grid& grid, float scale) {
  F4 e = {};
  for (int j = 0; j < n; j += 4) {
    const F4 v = load(x + j), d = scale * grid.code(v) + grid.offset - v;
    e += load(w + j) * d * d;
  }
  return sum(e);
}

struct Fit {
  float scale, offset, error;
};

// Returns the best scale and offset for the codes that a grid gives. with_offset: an offset <= 0,
// else none.
Fit fit(const float* x, const float* w, int n, const Grid& grid, bool with_offset) {
  F4 sw = {}, sx = {}, sq = {}, sqq = {}, sqx = {}, sxx = {};
  for (int j = 0; j < n; j += 4) {
    const F4 v = load(x + j), weight = load(w + j), q = grid.code(v), wq = weight * q,
             wx = weight * v;
    sw += weight, sx += wx, sq += wq, sqq += wq * q, sqx += wq * v, sxx += wx * v;
  }
  const double w1 = sum(sw), x1 = sum(sx), q1 = sum(sq), qq = sum(sqq), qx = sum(sqx),
               xx = sum(sxx);
  double scale = qq > 0 ? qx / qq : 0, offset = 0;
  if (with_offset) {
    const double det = w1 * qq - q1 * q1;
    if (det > 1e-6 * w1 * qq) {
      scale = (w1 * qx - x1 * q1) / det;
      offset = (qq * x1 - q1 * qx) / det;
    } else {  // all codes are the same
      scale = 0;
      offset = w1 > 0 ? x1 / w1 : 0;
    }
    if (!(offset <= 0)) {
      offset = 0;
      scale = qq > 0 ? qx / qq : 0;
    }
    if (!(scale >= 0)) scale = 0;
  }
  const double error = xx + scale * scale * qq + offset * offset * w1 +
                       2 * (scale * offset * q1 - scale * qx - offset * x1);
  return {static_cast<float>(scale), static_cast<float>(offset), static_cast<float>(error)};
}

void take_better(Fit* best, const Fit& other) {
  if (other.error < best->error) *best = other;
}

// Finds scale and minimum of 32 values for codes 0..top. Tries grids near the one that spans the
// values, fits each, then refits the best one to its own codes.
Fit search_range(const float* x, const float* w, float top) {
  const auto [first, last] = std::minmax_element(x, x + 32);
  const float low = std::min(*first, 0.0f), high = *last;
  if (!(high > low)) return {0, low, 0};
  Fit best{(high - low) / top, low, INFINITY};
  for (int i = -10; i <= 5; ++i) {
    const float steps = top + 0.15f * static_cast<float>(i);
    take_better(&best, fit(x, w, 32, {steps / (high - low), low, 0, top}, true));
  }
  for (int i = 0; i < 2; ++i)
    take_better(&best, fit(x, w, 32, grid_of(best.scale, best.offset, 0, top), true));
  return best;
}

// Finds the scale of 16 values for codes -32..31: the value of largest magnitude gets about the
// lowest or the highest code.
Fit search_symmetric(const float* x, const float* w) {
  float most = 0;
  for (int j = 0; j < 16; ++j)
    if (std::fabs(x[j]) > std::fabs(most)) most = x[j];
  if (most == 0) return {0, 0, 0};
  Fit best{most / -32, 0, INFINITY};
  for (int i = -8; i <= 8; ++i)
    for (int side = -1; side <= 1; side += 2) {
      const float steps = 31.5f + 0.5f * static_cast<float>(-side) + 0.15f * static_cast<float>(i);
      take_better(&best,
                  fit(x, w, 16, {static_cast<float>(side) * steps / most, 0, -32, 31}, false));
    }
  for (int i = 0; i < 2; ++i)
    take_better(&best, fit(x, w, 16, grid_of(best.scale, 0, -32, 31), false));
  return best;
}

// Computes w, the importance of each value: rms + |x|, so that large values count for more.
void weights_of(const float* x, float* w) {
  double squares = 0;
  for (int j = 0; j < 256; ++j) squares += static_cast<double>(x[j]) * x[j];
  const float rms = static_cast<float>(std::sqrt(squares / 256));
  for (int j = 0; j < 256; ++j) w[j] = rms + std::fabs(x[j]);
}

// The scales of a block: value j of group g is d scale[g] q - dmin min[g].
struct BlockScales {
  float d = 0, dmin = 0;
  int scale[16] = {}, min[16] = {};
  float error = INFINITY;
};

// Returns the nearest f16 or, among the subnormals, the next one of at least v's magnitude, so that
// no group lacks range.
float as_f16(float v) {
  uint16_t h = f32_to_f16(v);
  if (std::fabs(v) < 0x1p-14f && std::fabs(f16_to_f32(h)) < std::fabs(v)) ++h;
  if ((h & 0x7fff) >= 0x7c00) throw TooLarge();
  return f16_to_f32(h);
}

struct Kind {
  int groups;       // groups of 256 / groups values
  float low, high;  // codes
  int scale_low, scale_high, min_high;
  int size() const { return 256 / groups; }
};

// Chooses the integer scale and minimum of each group for given d and dmin: the best of the
// integers near the ideal values (scales, mins) and of their neighbours.
void choose_integers(const Kind& kind, const float* x, const float* w, const float* scales,
                     const float* mins, BlockScales* s) {
  s->error = 0;
  for (int g = 0; g < kind.groups; ++g) {
    const float* xg = x + g * kind.size();
    const float* wg = w + g * kind.size();
    const auto error = [&](int scale, int min) {
      const float a = s->d * static_cast<float>(scale), b = -s->dmin * static_cast<float>(min);
      return error_of(xg, wg, kind.size(), grid_of(a, b, kind.low, kind.high), a);
    };
    const auto whole = [](float v, float unit, int low, int high) {
      return unit != 0 ? static_cast<int>(std::clamp(std::round(v / unit), static_cast<float>(low),
                                                     static_cast<float>(high)))
                       : 0;
    };
    const int scale = whole(scales[g], s->d, kind.scale_low, kind.scale_high),
              min = whole(mins[g], s->dmin, 0, kind.min_high);
    float best = INFINITY;
    for (int i = std::max(scale - 1, kind.scale_low); i <= std::min(scale + 1, kind.scale_high);
         ++i)
      for (int k = std::max(min - 1, 0); k <= std::min(min + 1, kind.min_high); ++k)
        if (const float e = error(i, k); e < best) best = e, s->scale[g] = i, s->min[g] = k;
    s->error += best;
  }
}

// Finds the best d and dmin for the codes that s gives.
void refit(const Kind& kind, const float* x, const float* w, const BlockScales& s, float* d,
           float* dmin) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // x ~ d a + dmin b
  for (int g = 0; g < kind.groups; ++g) {
    const float scale = static_cast<float>(s.scale[g]), min = static_cast<float>(s.min[g]);
    const Grid grid = grid_of(s.d * scale, -s.dmin * min, kind.low, kind.high);
    F4 waa = {}, wa = {}, wax = {}, w1 = {}, wx = {};
    for (int j = g * kind.size(); j < (g + 1) * kind.size(); j += 4) {
      const F4 v = load(x + j), weight = load(w + j), a = scale * grid.code(v);
      waa += weight * a * a, wa += weight * a, wax += weight * a * v, w1 += weight,
          wx += weight * v;
    }
    aa += sum(waa), ab -= min * sum(wa), bb += min * min * sum(w1), ax += sum(wax),
        bx -= min * sum(wx);
  }
  const double det = aa * bb - ab * ab;
  if (kind.min_high > 0 && det > 1e-6 * aa * bb) {
    *d = static_cast<float>((bb * ax - ab * bx) / det);
    *dmin = static_cast<float>((aa * bx - ab * ax) / det);
  } else if (aa > 0) {
    *d = static_cast<float>((ax - ab * static_cast<double>(*dmin)) / aa);
  }
}

BlockScales search(const Kind& kind, const float* x, const float* w) {
  float scales[16], mins[16], most = 0, deepest = 0;
  for (int g = 0; g < kind.groups; ++g) {
    const float *xg = x + g * kind.size(), *wg = w + g * kind.size();
    const Fit f = kind.min_high > 0 ? search_range(xg, wg, kind.high) : search_symmetric(xg, wg);
    scales[g] = f.scale;
    mins[g] = -f.offset;
    if (std::fabs(f.scale) > std::fabs(most)) most = f.scale;
    deepest = std::max(deepest, mins[g]);
  }
  // The largest scale gets the integer of largest magnitude.
  BlockScales best;
  best.d = as_f16(most / static_cast<float>(kind.scale_low < 0 ? kind.scale_low : kind.scale_high));
  best.dmin = kind.min_high > 0 ? as_f16(deepest / static_cast<float>(kind.min_high)) : 0;
  choose_integers(kind, x, w, scales, mins, &best);
  for (int i = 0; i < 2; ++i) {
    BlockScales next = best;
    refit(kind, x, w, best, &next.d, &next.dmin);
    next.d = as_f16(next.d), next.dmin = as_f16(next.dmin < 0 ? 0 : next.dmin);
    if (next.d == best.d && next.dmin == best.dmin) break;
    choose_integers(kind, x, w, scales, mins, &next);
    if (!(next.error < best.error)) break;
    best = next;
  }
  return best;
}

void codes_of(const Kind& kind, const float* x, const BlockScales& s, uint8_t* code) {
  for (int g = 0; g < kind.groups; ++g) {
    const Grid grid = grid_of(s.d * static_cast<float>(s.scale[g]),
                              -s.dmin * static_cast<float>(s.min[g]), kind.low, kind.high);
    for (int j = g * kind.size(); j < (g + 1) * kind.size(); j += 4) {
      const F4 q = grid.code(load(x + j));
      for (int i = 0; i < 4; ++i)
        code[j + i] = static_cast<uint8_t>(static_cast<int>(q[i]) - static_cast<int>(kind.low));
    }
  }
}

// Writes a block whose groups have integer scales.
template <DType T>
void q_groups(const float* x, uint8_t* b) {
  constexpr DTypeInfo info = dtype_info(T);
  constexpr float low = -info.offset, high = static_cast<float>((1 << info.bits()) - 1) + low;
  constexpr Kind kind = info.scales == Scales::Pairs ? Kind{info.groups(), low, high, 0, 63, 63}
                                                     : Kind{info.groups(), low, high, -128, 127, 0};
  float w[256];
  weights_of(x, w);
  const BlockScales s = search(kind, x, w);
  uint8_t code[256];
  codes_of(kind, x, s, code);
  put_f16(b + info.d_at, s.d);
  if constexpr (info.has_min()) put_f16(b + info.dmin_at, s.dmin);
  for (int g = 0; g < kind.groups; ++g) cpu::put_scale_min<T>(b, g, s.scale[g], s.min[g]);
  for (int j = 0; j < 256; ++j) cpu::put_code<T>(b, j, code[j]);
}

void put_bf16(uint8_t* b, float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), rounded = bits + 0x7fff + (bits >> 16 & 1);
  if ((rounded & 0x7f800000) == 0x7f800000) throw TooLarge();
  const uint16_t h = static_cast<uint16_t>(rounded >> 16);
  std::memcpy(b, &h, 2);
}

template <DType T>
void quantise_block(const float* x, uint8_t* b) {
  constexpr DTypeInfo info = dtype_info(T);
  std::memset(b, 0, info.block_bytes);
  if constexpr (!info.written)
    fail(RIFFLE_INTERNAL, "riffle reads the weight type %s but does not write it", info.name);
  else if constexpr (T == DType::F32) std::memcpy(b, x, 4);
  else if constexpr (T == DType::F16) put_f16(b, *x);
  else if constexpr (T == DType::BF16) put_bf16(b, *x);
  else if constexpr (info.groups() > 1) q_groups<T>(x, b);
  else if constexpr (info.codes == Codes::Bytes) q_bytes<T>(x, b);
  else if constexpr (info.has_min()) q_range<T>(x, b);
  else q_symmetric<T>(x, b);
}

}  // namespace

void quantise_rows(DType type, const float* x, int64_t rows, int64_t cols, void* out,
                   const char* name, int64_t first_row) {
  const DTypeInfo& info = dtype_info(type);
  if (cols % info.block_values != 0)
    fail(RIFFLE_BAD_ARGUMENT, "%s: rows of %lld values are not whole blocks of %d, as %s needs",
         name, static_cast<long long>(cols), info.block_values, info.name);
  uint8_t* b = static_cast<uint8_t*>(out);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; j += info.block_values, b += info.block_bytes) {
      const float* v = x + r * cols + j;
      for (int i = 0; i < info.block_values; ++i)
        if (!std::isfinite(v[i]))
          fail(RIFFLE_BAD_MODEL, "%s: value %g in row %lld, column %lld cannot be written as %s",
               name, static_cast<double>(v[i]), static_cast<long long>(first_row + r),
               static_cast<long long>(j + i), info.name);
      try {
        with_type(type, [&]<DType T>() { quantise_block<T>(v, b); });
      } catch (const TooLarge&) {
        fail(RIFFLE_BAD_MODEL, "%s: values in row %lld from column %lld on are too large for %s",
             name, static_cast<long long>(first_row + r), static_cast<long long>(j), info.name);
      }
    }
}

void quantise_rows(ThreadPool& threads, DType type, const float* x, int64_t rows, int64_t cols,
                   void* out, const char* name) {
  // Pieces are whole rows, and small enough to keep all threads busy.
  const int64_t step = std::max<int64_t>(1, rows / (8 * threads.size())),
                bytes = row_bytes(type, cols);
  threads.parallel_for((rows + step - 1) / step, [&](int64_t i, int) {
    const int64_t r = i * step;
    quantise_rows(type, x + r * cols, std::min(step, rows - r), cols,
                  static_cast<uint8_t*>(out) + r * bytes, name, r);
  });
}

}  // namespace riffle
