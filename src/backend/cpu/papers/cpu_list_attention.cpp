// Attention over sequences whose keys are held before RoPE (TokenSelect's released code;
// src/select/README.md). A token's position is its index in the list that is attended to, and the
// queries are at the list's end. Keys are rotated in f32 when they are read, and not rounded again.
// The tokens of the list are chosen with the query at StepRequest::query_position and all keys at
// position 0, so that every candidate is equally far away.
//
// Held keys and queries are "rotated to position 0": pairs are already in (j, j + d/2) order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_device.h"

namespace riffle {

// Returns value_at of the blocks that are loaded as f32 (kernels/cpu/attention/attention.h).
static int64_t loaded_value_at(const BlockLayout& layout) {
  return int64_t(layout.block_size) * layout.head_dim * int64_t{sizeof(float)};
}

void CpuDevice::rotate_heads(float* x, int n_heads, int64_t position) const {
  const auto p = static_cast<int32_t>(position);
  kernels_->linear.rope(x, 1, int64_t(n_heads) * config_.head_dim, n_heads, config_.head_dim,
                        cos_sin_[0].data(), &p, {false, config_.head_dim});
}

// Makes two scaled copies of the queries: one for the selector, and one that place_row rotates when
// the list is known.
void CpuDevice::prepare_list_rows(const float* q, float scale) {
  const BlockLayout& layout = store_.layout();
  const int heads = config_.n_kv_heads, d = layout.head_dim, width = config_.n_heads * d,
            g = config_.n_heads / heads;
  if (std::none_of(step_.sequences, step_.sequences + step_.n,
                   [](const SequenceKv* s) { return s->unrotated; }))
    return;
  list_q_.reserve(step_.n * width * sizeof(float));
  const size_t block = size_t(2) * layout.block_size * d * sizeof(float);
  list_blocks_.resize(threads_->size());
  for (Buffer& b : list_blocks_) {
    if (b.size() >= block) continue;
    b.reserve(block);
    std::memset(b.data(), 0, block);  // kernels may multiply unused places by zero
  }
  for (int64_t i = 0; i < step_.n; ++i) {
    if (!step_.sequences[i]->unrotated) continue;
    float* list_q = list_q_.as<float>() + i * width;
    for (int j = 0; j < width; ++j) list_q[j] = q[i * width + j] * scale;
    rotate_heads(q_scaled_.as<float>() + i * width, config_.n_heads,
                 std::min(step_.query_position, step_.position(i)));
    for (int h = 0; h < heads; ++h) rows_[i * heads + h].list_q = list_q + h * g * d;
  }
}

// Finds the places in the list of the plan's tokens, and rotates the query to the list's end.
// Requires: the plan is made.
void CpuDevice::place_row(ActiveRow& r) {
  int32_t n = 0;
  r.list_at.resize(r.plan->size());
  for (int i = 0; i < r.plan->size(); ++i) {
    r.list_at[i] = n;
    n += std::popcount(token_mask(r, i));
  }
  rotate_heads(r.list_q, r.row.g, n - 1);
  r.row.q = r.list_q;
}

// Writes the tokens of mask as f32, packed: K[B][d], rotated to position, position + 1, ..., then
// V[B][d]. Returns the number of tokens.
int CpuDevice::load_rotated(const std::byte* block, uint64_t mask, int32_t position,
                            float* out) const {
  const BlockLayout& layout = store_.layout();
  const int d = layout.head_dim;
  float* v = out + int64_t(layout.block_size) * d;
  int32_t at[64];
  int n = 0;
  for (uint64_t rest = mask; rest != 0; rest &= rest - 1, ++n) {
    const std::byte* row = block + std::countr_zero(rest) * layout.row_bytes();
    kernels_->attention.kv_load(row, d, layout.type, out + int64_t(n) * d);
    kernels_->attention.kv_load(row + layout.value_offset(), d, layout.type, v + int64_t(n) * d);
    at[n] = position + n;
  }
  kernels_->linear.rope(out, n, d, 1, d, cos_sin_[0].data(), at, {false, d});
  return n;
}

void CpuDevice::attend_rotated(ActiveRow& r, int begin, int end, float* l_block, int l_stride,
                               int thread) {
  const BlockLayout& layout = store_.layout();
  auto* kv = list_blocks_[thread].as<float>();
  for (int i = begin; i < end; ++i, l_block += l_stride) {
    const int n = load_rotated(block_data(r, i), token_mask(r, i), r.list_at[i], kv);
    kernels_->attention.attend_block(r.row.q, r.row.g, r.row.d, kv, KvType::F32, layout.block_size,
                                     loaded_value_at(layout), first_tokens(n),
                                     &r.spans[i / r.span_blocks], l_block, nullptr);
  }
}

// Coverage needs one measure for read and unread tokens, so all tokens are at their places in the
// text. Beyond the trained length the model does not work there, and coverage means little.
void CpuDevice::list_coverage(const ActiveRow& r, float* coverage, int thread) {
  const BlockLayout& layout = store_.layout();
  const int g = r.row.g, d = r.row.d;
  std::vector<float> memory(size_t(3) * g * d + 5 * g);
  float* at = memory.data();
  cpu::AttendState state[2];  // selected, all
  for (cpu::AttendState& s : state) {
    s = {at, at + g * d, at + g * d + g};
    std::fill_n(s.m, g, -std::numeric_limits<float>::infinity());
    at += g * d + 2 * g;
  }
  float* q = at + g;
  std::copy_n(r.row.q, g * d, q);
  int64_t list = 0;
  for (int i = 0; i < r.plan->size(); ++i) list += std::popcount(token_mask(r, i));
  rotate_heads(q, g, r.row.n_tokens - list);  // from the list's end to the text's
  auto* kv = list_blocks_[thread].as<float>();
  int position = 0;  // in the plan, which is in token order
  for (int b = 0; b < r.row.n_blocks; ++b) {
    const int used = r.row.tokens_in(b);
    load_rotated(r.row.block(b), first_tokens(used), b * layout.block_size, kv);
    const bool selected = position < r.plan->size() && r.plan->at(position) == b;
    const uint64_t masks[2] = {selected ? token_mask(r, position) : 0, first_tokens(used)};
    position += selected;
    for (int i = 0; i < 2; ++i)
      if (masks[i])
        kernels_->attention.attend_block(q, g, d, kv, KvType::F32, layout.block_size,
                                         loaded_value_at(layout), masks[i], &state[i], at, nullptr);
  }
  for (int h = 0; h < g; ++h) {
    const float log_share =
        state[0].m[h] + std::log(state[0].s[h]) - state[1].m[h] - std::log(state[1].s[h]);
    coverage[h] = std::min(1.0f, std::exp(log_share));
  }
}

// Copies the queries of n_heads heads of the chunk from a column of a.q to the same column of
// list_q_, query i rotated to position + i.
void CpuDevice::place_list_queries(const PrefillAttention& a, int64_t position, int64_t column,
                                   int n_heads) {
  const int64_t d = store_.layout().head_dim, width = config_.n_heads * d;
  auto* q = list_q_.as<float>();
  positions_.resize(std::max<size_t>(positions_.size(), a.n));
  for (int64_t i = 0; i < a.n; ++i) {
    positions_[i] = static_cast<int32_t>(position + i);
    std::copy_n(a.q + i * a.ldq + column, n_heads * d, q + i * width + column);
  }
  rotate(q + column, a.n, width, n_heads, positions_.data(), 0);
}

// Makes the query that selects for the whole chunk: the scaled mean of each head's queries.
void CpuDevice::average_list_queries(const PrefillAttention& a) {
  const int d = store_.layout().head_dim;
  const int64_t width = int64_t(config_.n_heads) * d;
  // If RoPE's tables are too short for query_position, all tokens are read and none is selected
  // (Engine::rope_positions).
  place_list_queries(a, std::min(a.query_position, rope_positions_ - a.n), 0, config_.n_heads);
  const auto* q = list_q_.as<float>();
  auto* votes = list_scores_.as<float>();
  const double scale = 1 / std::sqrt(static_cast<double>(d)) / static_cast<double>(a.n);
  threads_->parallel_for(config_.n_heads, [&](int64_t h, int) {
    for (int64_t j = h * d; j < (h + 1) * d; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < a.n; ++i) sum += q[i * width + j];
      votes[j] = static_cast<float>(sum * scale);
    }
  });
}

// Fills layer_rows_, a selector's view of each KV head, with the query of average_list_queries.
void CpuDevice::make_list_rows(const PrefillAttention& a) {
  const BlockLayout& layout = store_.layout();
  const int d = layout.head_dim, heads = config_.n_kv_heads, g = config_.n_heads / heads;
  layer_rows_.assign(heads, Row());
  for (int h = 0; h < heads; ++h) {
    Row& row = layer_rows_[h];
    row.q = list_scores_.as<float>() + int64_t(h) * g * d;
    row.g = g;
    row.d = d;
    row.block_size = layout.block_size;
    row.n_tokens = a.pos0 + a.n;
    row.n_blocks = static_cast<int>(layout.blocks(row.n_tokens));
    row.n_full = row.n_blocks - 1;
    row.kernels = kernels_;
    row.layer = a.layer;
    row.source = store_.shape().source(a.layer);
    row.head = h;
    row.blocks = a.kv.blocks + h * a.kv.n_blocks;
    row.tail = row.blocks[row.n_blocks - 1];
    row.type = layout.type;
    row.state = a.sequence->selection.get();
  }
}

// Fills list_ids_ with the tokens that a plan reads, in the plan's order.
void CpuDevice::list_tokens(const Row& row, RowPlan& plan) {
  list_ids_.clear();
  for (int i = 0; i < plan.size(); ++i) {
    const int32_t first = plan.at(i) * row.block_size;
    const auto used = static_cast<int>(std::min<int64_t>(row.block_size, row.n_tokens - first));
    for (uint64_t rest = plan.mask(i) & first_tokens(used); rest != 0; rest &= rest - 1)
      list_ids_.push_back(first + std::countr_zero(rest));
  }
}

// Fills list_table_ with f32 blocks of the tokens of list_ids_, keys rotated to their places in the
// list. The last block is padded with zeros.
void CpuDevice::gather_list(const Row& row) {
  const BlockLayout& layout = store_.layout();
  const int d = layout.head_dim, block_size = layout.block_size;
  const auto n = static_cast<int64_t>(list_ids_.size());
  const int64_t n_blocks = layout.blocks(n);
  const size_t bytes = (size_t(2) * block_size * d * sizeof(float) + 63) / 64 * 64;
  list_kv_.reserve(n_blocks * bytes);
  list_table_.resize(n_blocks);
  for (int64_t b = 0; b < n_blocks; ++b) list_table_[b] = list_kv_.as<std::byte>() + b * bytes;
  threads_->parallel_for(n_blocks, [&](int64_t b, int) {
    auto* k = reinterpret_cast<float*>(list_kv_.as<std::byte>() + b * bytes);
    float* v = k + int64_t(block_size) * d;
    int32_t at[64];
    const int count = static_cast<int>(std::min<int64_t>(block_size, n - b * block_size));
    for (int t = 0; t < count; ++t) {
      const int32_t id = list_ids_[b * block_size + t];
      kernels_->attention.kv_load(row.key(id), d, layout.type, k + int64_t(t) * d);
      kernels_->attention.kv_load(row.value(id), d, layout.type, v + int64_t(t) * d);
      at[t] = static_cast<int32_t>(b * block_size + t);
    }
    std::fill(k + int64_t(count) * d, v, 0.f);
    std::fill(v + int64_t(count) * d, v + int64_t(block_size) * d, 0.f);
    kernels_->linear.rope(k, count, d, 1, d, cos_sin_[0].data(), at, {false, d});
  });
}

// Computes causal attention of one KV head's queries over the list, whose last a.n tokens are the
// queries' own.
void CpuDevice::attend_to_list(const PrefillAttention& a, int head) {
  const int d = store_.layout().head_dim, block_size = store_.layout().block_size,
            g = config_.n_heads / config_.n_kv_heads;
  const int64_t width = int64_t(config_.n_heads) * d, column = int64_t(head) * g * d;
  const auto pos0 = static_cast<int64_t>(list_ids_.size()) - a.n;
  const int tile = kernels_->attention.prefill_tile(g, d);
  for (Buffer& b : thread_scratch_)
    b.reserve(kernels_->attention.prefill_scratch_bytes(tile, g, d, block_size));
  const int64_t tiles = (a.n + tile - 1) / tile;
  threads_->parallel_for(tiles, [&](int64_t item, int thread) {
    const int64_t i0 = (tiles - 1 - item) * tile;
    const int n_q = static_cast<int>(std::min<int64_t>(tile, a.n - i0));
    kernels_->attention.attend_prefill(
        list_q_.as<float>() + i0 * width + column, width, n_q, g, d, pos0 + i0, 0, nullptr,
        list_table_.data(), block_size, KvType::F32, loaded_value_at(store_.layout()),
        sinks(a.layer, head), a.out + i0 * a.ldo + column, a.ldo, thread_scratch_[thread].data());
  });
}

// Selects once for the chunk, with the mean of its queries. The list's keys are gathered and
// rotated once for all queries. Then attention is ordinary causal attention, with the list as the
// context. The list's last n tokens are the chunk's own, since the caller's chunks are no longer
// than the selector's window.
void CpuDevice::attend_prefill_list(const PrefillAttention& a) {
  const int d = store_.layout().head_dim, heads = config_.n_kv_heads, g = config_.n_heads / heads;
  const int64_t width = int64_t(config_.n_heads) * d;
  list_q_.reserve(a.n * width * sizeof(float));
  list_scores_.reserve(width * sizeof(float));
  if (a.selector) average_list_queries(a);
  if (static_cast<int>(plans_.size()) < heads) plans_.resize(heads);
  make_list_rows(a);
  if (a.selector) {
    a.sequence->selection->truncate(0);  // every chunk has a selection of its own
    a.selector->begin_layer(layer_rows_.data(), heads, *threads_);
  }
  for (int h = 0; h < heads; ++h) {
    if (a.selector) a.selector->begin(layer_rows_[h], plans_[h]);
    else plans_[h].everything(layer_rows_[h]);
    list_tokens(layer_rows_[h], plans_[h]);
    const auto n = static_cast<int64_t>(list_ids_.size());
    place_list_queries(a, n - a.n, int64_t(h) * g * d, g);
    gather_list(layer_rows_[h]);
    attend_to_list(a, h);
  }
}

void CpuDevice::change_positions(SequenceKv& s, bool unrotated) {
  if (s.unrotated == unrotated) return;
  const BlockLayout& layout = store_.layout();
  const int d = layout.head_dim, half = d / 2, block_size = layout.block_size;
  for (Buffer& b : thread_scratch_) b.reserve(size_t(block_size) * d * sizeof(float));
  kv_->retire(s);
  threads_->parallel_for(s.heads.size(), [&](int64_t i, int thread) {
    auto* k = thread_scratch_[thread].as<float>();
    int32_t at[64];
    const int heads = config_.kv_heads(0);  // the same in all layers
    std::span<const float> centre = key_centre(static_cast<int>(i) / heads);
    if (!centre.empty()) centre = centre.subspan(i % heads * d, d);
    for (int64_t first = 0; first < s.n_tokens; first += block_size) {
      const int n = static_cast<int>(std::min<int64_t>(block_size, s.n_tokens - first));
      std::byte* block = s.heads[i].blocks[first / block_size];
      const auto stride = static_cast<int64_t>(layout.row_bytes());
      for (int t = 0; t < n; ++t)
        kernels_->attention.kv_load(block + t * stride, d, layout.type, k + int64_t(t) * d);
      for (int t = 0; t < n; ++t) at[t] = static_cast<int32_t>(first + t);
      if (!unrotated) kernels_->linear.rope(k, n, d, 1, d, cos_sin_[0].data(), at, {false, d});
      if (unrotated) shift_keys(k, n, centre, 1);
      if (layout.transforms_keys()) transform(k, n, d);  // the transform is its own inverse
      if (!unrotated) shift_keys(k, n, centre, -1);
      for (int t = 0; t < n && unrotated; ++t) {  // rotates by the negative angle
        float* x = k + int64_t(t) * d;
        const float* cos_sin = cos_sin_[0].data() + (first + t) * d;
        for (int j = 0; j < half; ++j) {
          const float c = cos_sin[2 * j], sine = cos_sin[2 * j + 1], a = x[j], b = x[j + half];
          x[j] = a * c + b * sine;
          x[j + half] = b * c - a * sine;
        }
      }
      for (int t = 0; t < n; ++t)
        kernels_->attention.kv_store(k + int64_t(t) * d, d, layout.type, block + t * stride);
    }
  });
  s.unrotated = unrotated;
  store_.renew_digests(s);
}

}  // namespace riffle
