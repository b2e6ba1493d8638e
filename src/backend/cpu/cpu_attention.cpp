// Decode attention: every row attends to its blocks in its selector's order until the selector
// stops it. One driver serves both kinds of device. In place, a row runs to its end in one go,
// since its blocks cost nothing to reach. With a pool, rows advance in lockstep: grant slots to
// each active row (serial, pure bookkeeping); then copy the misses, attend and test (parallel);
// until no row is active.
//
// The blocks that are read never depend on grants: tests fall at fixed positions of a row's order
// (after the forced blocks and the first microbatch, then after every further microbatch), and
// partial results are merged in that order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_device.h"
#include "util/error.h"

namespace riffle {

// One-shot rows are cut into spans of this many blocks, each with a partial state of its own, so
// that threads can share a row. A row's span size depends only on its length, so results do not
// depend on the number of threads.
static constexpr int kSpanBlocks = 64;
// With multi-head latent attention a sequence has one row a layer, with the work of all query
// heads, so its spans are shorter: at most kLatentSpans, of at least kLeastSpan blocks.
static constexpr int kLatentSpans = 32, kLeastSpan = 8;

static int span_blocks_of(const Row& row) {
  if (!row.values_in_keys) return kSpanBlocks;
  return std::max(kLeastSpan, (row.n_blocks + kLatentSpans - 1) / kLatentSpans);
}

static void clear(cpu::AttendState& s, int g, int d) {
  std::fill_n(s.o, g * d, 0.f);
  std::fill_n(s.m, g, -std::numeric_limits<float>::infinity());
  std::fill_n(s.s, g, 0.f);
}

void CpuDevice::prepare_rows(int layer, const float* q, const Selector& selector) {
  const BlockLayout layout = store_.shape().layout(layer);
  const int heads = config_.kv_heads(layer), n_heads = config_.heads(layer), g = n_heads / heads,
            d = layout.head_dim;
  const int64_t n_rows = step_.n * heads;
  if (static_cast<int64_t>(rows_.size()) < n_rows) {
    plans_.resize(n_rows);
    rows_.resize(n_rows);  // last: if an earlier line throws, the next call tries it again
  }
  int64_t longest = 0;
  for (int64_t i = 0; i < step_.n; ++i)
    longest = std::max(longest, layout.blocks(step_.position(i) + 1));
  const int64_t spans =
      layout.values_in_keys ? kLatentSpans : (longest + kSpanBlocks - 1) / kSpanBlocks;
  const int64_t state_stride = (int64_t(g) * d + 2 * g + 15) / 16 * 16;
  states_.reserve(n_rows * spans * state_stride * sizeof(float));
  span_states_.resize(std::max<size_t>(span_states_.size(), n_rows * spans));
  for (int64_t i = 0; i < n_rows * spans; ++i) {
    float* base = states_.as<float>() + i * state_stride;
    span_states_[i] = {base, base + g * d, base + g * d + g};
  }
  const int64_t l_stride = int64_t(selector.microbatch() + 1) * g;
  l_blocks_.reserve(n_rows * l_stride * sizeof(float));
  q_scaled_.reserve(step_.n * n_heads * d * sizeof(float));
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t i = 0; i < step_.n * n_heads * d; ++i) q_scaled_.as<float>()[i] = q[i] * scale;

  for (int64_t i = 0; i < n_rows; ++i) {
    ActiveRow& r = rows_[i];
    r.sequence = step_.sequences[i / heads];
    r.layer = layer;
    r.head = static_cast<int>(i % heads);
    const HeadKv& kv = store_.head(*r.sequence, layer, r.head);
    r.row.q = q_scaled_.as<float>() + (i / heads * n_heads + r.head * g) * d;
    r.row.g = g;
    r.row.d = d;
    r.row.block_size = layout.block_size;
    r.row.n_tokens = step_.position(i / heads) + 1;
    r.row.window = step_.window_of(layer);
    r.row.n_blocks = static_cast<int>(layout.blocks(r.row.n_tokens));
    r.row.n_full = r.row.n_blocks - 1;
    r.row.digests = kv.digests.data();
    r.row.digest_stride = store_.digest_stride(r.sequence->spec, layer);
    r.row.bound_factor = kv.bound_factor.data();
    r.row.kernels = kernels_;
    r.row.layer = layer;
    r.row.source = store_.shape().source(layer);
    r.row.head = r.head;
    r.row.blocks = kv.blocks.data();
    r.row.tail = kv_->tail(*r.sequence, layer, r.head);
    r.row.type = layout.type;
    r.row.values_in_keys = layout.values_in_keys;
    r.row.state = r.sequence->selection.get();
    r.list_q = nullptr;
    r.plan = &plans_[i];
    r.spans = span_states_.data() + i * spans;
    r.l_blocks = l_blocks_.as<float>() + i * l_stride;
    r.held.clear();
    r.held_from = 0;
    r.lookups = r.misses = 0;
  }
  prepare_list_rows(q, scale);
}

// Threads share the planning parts of all rows of the step at once, so neither one sequence's few
// rows nor a batch of short sequences leaves a thread without work.
void CpuDevice::plan_parts(int64_t n_rows, const Selector& selector) {
  if (!selector.has_parts()) return;
  threads_->parallel_for(n_rows, [&](int64_t i, int) {
    rows_[i].n_parts = selector.prepare(rows_[i].row, *rows_[i].plan);
  });
  work_.clear();
  for (int64_t i = 0; i < n_rows; ++i)
    for (int p = 0; p < rows_[i].n_parts; ++p) work_.push_back({&rows_[i], p, p + 1});
  threads_->parallel_for(work_.size(), [&](int64_t i, int thread) {
    const Work& w = work_[i];
    selector.part(w.row->row, *w.row->plan, w.begin, thread_scratch_[thread]);
  });
}

void CpuDevice::plan_row(ActiveRow& r, const Selector& selector) {
  selector.begin(r.row, *r.plan);
  if (r.list_q) place_row(r);
  const int m = selector.microbatch(), size = r.plan->size();
  r.span_blocks =
      m > 0 ? std::max(size, 1) : span_blocks_of(r.row);  // a test needs one state for all blocks
  r.n_spans = (size + r.span_blocks - 1) / r.span_blocks;
  if (r.plan->attended) r.n_spans = 1;  // an empty one
  r.at = 0;
  r.batch_begin = r.plan->n_forced();
  r.next_test = std::min(size, r.batch_begin + m);
  r.done = false;
  for (int s = 0; s < r.n_spans; ++s) clear(r.spans[s], r.row.g, r.row.d);
}

const std::byte* CpuDevice::block_data(const ActiveRow& r, int position) const {
  if (!r.held.empty()) return r.held[position - r.held_from].data;
  return store_.head(*r.sequence, r.layer, r.head).blocks[r.plan->at(position)];  // in place
}

// Returns the mask of the tokens at a position that the row attends to.
uint64_t CpuDevice::token_mask(const ActiveRow& r, int position) const {
  return r.plan->mask(position) & first_tokens(r.row.tokens_in(r.plan->at(position)));
}

// Attends to positions [begin, end) of the row's order, all of one span, and adds them to that
// span's state. l_block: [end-begin][g], or [g] scratch if the blocks' own masses are not needed
// (l_stride 0).
void CpuDevice::attend_positions(ActiveRow& r, int begin, int end, float* l_block, int l_stride,
                                 int thread) {
  if (begin == end || r.plan->attended) return;
  if (r.list_q) return attend_rotated(r, begin, end, l_block, l_stride, thread);
  const BlockLayout layout = store_.shape().layout(r.layer);
  cpu::AttendState& state = r.spans[begin / r.span_blocks];
  const std::byte* data = block_data(r, begin);
  for (int i = begin; i < end; ++i, l_block += l_stride) {
    const std::byte* next = i + 1 < end ? block_data(r, i + 1) : nullptr;
    // A sample counts e^weight times. The kernel has no factor for a block, so the state so far is
    // scaled by e^-weight, and the sum by e^weight afterwards.
    const float weight = r.plan->log_weight(i);
    for (int h = 0; weight != 0 && h < r.row.g; ++h) state.m[h] -= weight;
    kernels_->attention.attend_block(r.row.q, r.row.g, r.row.d, data, layout.type,
                                     layout.block_size, r.row.value_offset(), token_mask(r, i),
                                     &state, l_block, next);
    for (int h = 0; weight != 0 && h < r.row.g; ++h) state.m[h] += weight;
    data = next;
  }
}

// Continues a progressive row until `end` positions are attended or the selector stops it.
void CpuDevice::run_row(ActiveRow& r, int end, const Selector& selector, int thread) {
  const int m = selector.microbatch(), g = r.row.g, size = r.plan->size();
  float* l = r.l_blocks + m * g;
  while (r.at < end && !r.done) {
    if (r.at < r.batch_begin) {  // forced blocks: their masses take no part in a test
      const int stop = std::min(end, r.batch_begin);
      attend_positions(r, r.at, stop, l, 0, thread);
      r.at = stop;
      r.done = r.at == size;
      continue;
    }
    const int stop = std::min(end, r.next_test);
    attend_positions(r, r.at, stop, r.l_blocks + (r.at - r.batch_begin) * g, g, thread);
    r.at = stop;
    if (r.at < r.next_test) continue;  // the slots granted ended inside a microbatch
    const cpu::AttendState& s = r.spans[0];
    for (int h = 0; h < g; ++h) l[h] = s.m[h] + std::log(s.s[h]);
    r.done =
        selector.done(r.row, *r.plan, r.at, l, r.l_blocks, r.at - r.batch_begin) || r.at == size;
    r.batch_begin = r.at;
    r.next_test = std::min(size, r.at + m);
  }
}

void CpuDevice::finish_row(ActiveRow& r, float* out) {
  const int g = r.row.g, d = r.row.d;
  for (int s = 1; s < r.n_spans; ++s) kernels_->attention.merge(&r.spans[0], &r.spans[s], g, d);
  if (!r.plan->stand_in.empty()) {
    if (!r.plan->attended) {  // tokens that stand in for others cover nothing
      r.plan->read_l.resize(g);
      for (int h = 0; h < g; ++h) r.plan->read_l[h] = r.spans[0].m[h] + std::log(r.spans[0].s[h]);
    }
    r.plan->scratch.assign(g, 1.0f);
    const cpu::AttendState rest{r.plan->stand_in.data(), r.plan->stand_in_l.data(),
                                r.plan->scratch.data()};
    kernels_->attention.merge(&r.spans[0], &rest, g, d);
  }
  const float* sink = sinks(r.layer, r.head);
  for (int h = 0; h < g; ++h) {
    const float inverse = 1.0f / r.spans[0].s[h];
    for (int j = 0; j < d; ++j) out[h * d + j] = r.spans[0].o[h * d + j] * inverse;
    if (!sink) continue;
    // Share of the softmax that all keys have; the sink has the rest. A weight that is infinite,
    // with a sink far above all scores, would give NaN.
    const float s = r.spans[0].s[h], weight = std::exp(sink[h] - r.spans[0].m[h]);
    const float share = s / (s + std::min(weight, 3e38f));
    for (int j = 0; j < d; ++j) out[h * d + j] *= share;
  }
}

void CpuDevice::attend_in_place(int64_t n_rows, const Selector& selector) {
  bool one_span = true;
  for (int64_t i = 0; i < n_rows; ++i)
    one_span &= rows_[i].row.n_blocks <= span_blocks_of(rows_[i].row);
  if (selector.microbatch() > 0 || one_span) {
    threads_->parallel_for(n_rows, [&](int64_t i, int thread) {
      ActiveRow& r = rows_[i];
      plan_row(r, selector);
      if (selector.microbatch() > 0) return run_row(r, r.plan->size(), selector, thread);
      attend_positions(r, 0, r.plan->size(), r.l_blocks, 0, thread);
      r.at = r.plan->size();
    });
    return;
  }
  threads_->parallel_for(n_rows, [&](int64_t i, int) {
    plan_row(rows_[i], selector);
    rows_[i].plan->at(rows_[i].plan->size() - 1);  // sorts all now: the items below share it
  });
  work_.clear();
  for (int64_t i = 0; i < n_rows; ++i)
    for (int s = 0; s < rows_[i].n_spans; ++s)
      work_.push_back({&rows_[i], s * rows_[i].span_blocks,
                       std::min(rows_[i].plan->size(), (s + 1) * rows_[i].span_blocks)});
  run_work(selector);
  for (int64_t i = 0; i < n_rows; ++i) rows_[i].at = rows_[i].plan->size();
}

void CpuDevice::load_held(const Work& w) {
  if (!w.row->held.empty())
    kv_->load(w.row->held.data() + (w.begin - w.row->held_from), w.end - w.begin);
}

void CpuDevice::run_work(const Selector& selector) {
  for (Buffer& b : thread_scratch_) b.reserve(size_t(config_.most_group()) * sizeof(float));
  if (waits_) threads_->parallel_for(work_.size(), [&](int64_t i, int) { load_held(work_[i]); });
  threads_->parallel_for(work_.size(), [&](int64_t i, int thread) {
    const Work& w = work_[i];
    if (!waits_) load_held(w);
    if (selector.microbatch() > 0) run_row(*w.row, w.end, selector, thread);
    else attend_positions(*w.row, w.begin, w.end, thread_scratch_[thread].as<float>(), 0, thread);
  });
}

// Grants slots for positions [at, end) of a row's order.
void CpuDevice::hold(ActiveRow& r, int end) {
  r.held.reserve(end - r.at);
  r.held_from = r.at;
  for (int i = r.at; i < end; ++i) {
    const int32_t block = r.plan->at(i);
    Held held;
    if (block == r.row.n_blocks - 1) {
      held.data = kv_->tail(*r.sequence, r.layer, r.head);
    } else {
      kv_->acquire(*r.sequence, r.layer, r.head, &block, 1, &held);
      ++r.lookups;
      r.misses += held.miss;
      waits_ |= held.wait;
    }
    r.held.push_back(held);
  }
}

// Grants each active row slots and work for one iteration, or for as much of it as the quota
// allows.
void CpuDevice::grant(int64_t quota, int lookahead, int microbatch) {
  work_.clear();
  waits_ = false;
  for (ActiveRow* r : active_) {
    const int64_t left = r->plan->size() - r->at;
    const int64_t want = microbatch > 0
                             ? int64_t(r->batch_begin - r->at) + int64_t(lookahead + 1) * microbatch
                             : left;
    const int end = r->at + static_cast<int>(std::min({want, quota, left}));
    hold(*r, end);
    if (microbatch > 0) {
      work_.push_back({r, r->at, end});
      continue;
    }
    for (int b = r->at, next; b < end; b = next) {
      next = std::min(end, (b / r->span_blocks + 1) * r->span_blocks);
      work_.push_back({r, b, next});
    }
  }
}

void CpuDevice::attend_pooled(int layer, int64_t n_rows, const Selector& selector) {
  const int m = selector.microbatch(), lookahead = step_.lookahead;
  threads_->parallel_for(n_rows, [&](int64_t i, int) { plan_row(rows_[i], selector); });
  // Number of rows that run at once: the pool has room for one iteration of each (forced blocks,
  // then look-ahead + 1 microbatches).
  const int64_t room = kv_->room(layer);
  int64_t need = 1;
  for (int64_t i = 0; i < n_rows && m > 0; ++i)
    need = std::max<int64_t>(
        need, std::min(rows_[i].plan->size(), rows_[i].plan->n_forced() + (lookahead + 1) * m));
  const int64_t group = std::clamp<int64_t>(room / need, 1, n_rows);
  for (int64_t first = 0; first < n_rows; first += group) {
    active_.clear();
    for (int64_t i = first; i < std::min(n_rows, first + group); ++i) {
      if (rows_[i].plan->attended) rows_[i].at = rows_[i].plan->size();
      else active_.push_back(&rows_[i]);
    }
    while (!active_.empty()) {
      const int64_t quota = room / static_cast<int64_t>(active_.size());
      if (quota < 1)
        fail(RIFFLE_NO_SLOT, "the pool of %lld slots has no slot free for this step",
             static_cast<long long>(kv_->slots()));
      try {
        grant(quota, lookahead, m);
        run_work(selector);
      } catch (...) {
        for (ActiveRow* r : active_) kv_->abandon(r->held.data(), static_cast<int>(r->held.size()));
        throw;
      }
      for (ActiveRow* r : active_) {
        if (m == 0) {
          r->at += static_cast<int>(r->held.size());
          r->done = r->at == r->plan->size();
        }
        kv_->release(r->held.data(), static_cast<int>(r->held.size()));
        r->held.clear();
      }
      std::erase_if(active_, [](const ActiveRow* r) { return r->done; });
    }
  }
}

// Computes exp(l_selected - l_all) for each query head: the share of the attention weight that lies
// inside the selection.
void CpuDevice::measure_coverage(int64_t n_rows) {
  const int g = rows_[0].row.g, d = rows_[0].row.d;
  const BlockLayout layout = store_.shape().layout(rows_[0].layer);
  coverage_.reserve(n_rows * g * sizeof(float));
  for (Buffer& b : thread_scratch_) b.reserve((size_t(g) * d + 3 * g) * sizeof(float));
  threads_->parallel_for(n_rows, [&](int64_t i, int thread) {
    ActiveRow& r = rows_[i];
    if (r.list_q) return list_coverage(r, coverage_.as<float>() + i * g, thread);
    float* base = thread_scratch_[thread].as<float>();
    cpu::AttendState all{base, base + g * d, base + g * d + g};
    const auto add = [&](int b, uint64_t mask) {
      kernels_->attention.attend_block(r.row.q, g, d, r.row.block(b), layout.type,
                                       layout.block_size, r.row.value_offset(), mask, &all,
                                       base + g * d + 2 * g, nullptr);
    };
    if (r.plan->n_sampled() > 0) {  // samples do not count as covered
      clear(all, g, d);
      for (int p = 0; p < r.at - r.plan->n_sampled(); ++p) add(r.plan->at(p), token_mask(r, p));
      r.plan->read_l.resize(g);
      for (int h = 0; h < g; ++h) r.plan->read_l[h] = all.m[h] + std::log(all.s[h]);
    }
    clear(all, g, d);
    for (auto b = static_cast<int>(r.row.first_seen() / layout.block_size); b < r.row.n_blocks; ++b)
      add(b, r.row.seen(b));
    const cpu::AttendState& some = r.spans[0];
    for (int h = 0; h < g; ++h) {
      const float read =
          r.plan->read_l.empty() ? some.m[h] + std::log(some.s[h]) : r.plan->read_l[h];
      const float log_share = read - all.m[h] - std::log(all.s[h]);
      coverage_.as<float>()[i * g + h] = std::min(1.0f, std::exp(log_share));
    }
  });
}

void CpuDevice::attend_step(int layer, const float* q, float* out) {
  const Selector& selector = step_.is_dense(layer) ? *step_.dense : *step_.selector;
  const int heads = config_.kv_heads(layer);
  const int64_t n_rows = step_.n * heads;
  const int g = config_.heads(layer) / heads, d = config_.head_size(layer);
  prepare_rows(layer, q, selector);
  if (selector.joint())
    for (int64_t i = 0; i < step_.n; ++i) {
      layer_rows_.clear();
      for (int h = 0; h < heads; ++h) layer_rows_.push_back(rows_[i * heads + h].row);
      selector.begin_layer(layer_rows_.data(), heads, *threads_);
    }
  plan_parts(n_rows, selector);
  if (kv_->in_place()) attend_in_place(n_rows, selector);
  else attend_pooled(layer, n_rows, selector);
  for (int64_t i = 0; i < n_rows; ++i) finish_row(rows_[i], out + i * g * d);
  restore_values(layer, out, step_.n, int64_t(config_.heads(layer)) * d);
  if (step_.coverage) measure_coverage(n_rows);
  reports_.resize(n_rows);
  counted_sets_.resize(heads);
  for (int64_t i = 0; i < n_rows; ++i) {
    const ActiveRow& r = rows_[i];
    reports_[i] = {r.row.n_blocks,
                   r.at,
                   r.lookups,
                   r.misses,
                   r.plan->tokens_read(r.row, r.at),
                   r.plan->index_bytes,
                   !r.plan->cached,
                   r.plan->order().data(),
                   step_.coverage ? coverage_.as<float>() + i * g : nullptr};
    if (step_.working_set == 0) continue;
    WorkingSet& set = *r.sequence->working_set;
    const auto row = static_cast<size_t>(store_.shape().first_head(layer)) + r.head;
    // Several layers may attend to the same blocks. Each layer reports only the blocks that it adds
    // to their working set.
    RowSets& before = counted_sets_[r.head];
    if (step_.ahead_of(i / heads) == 0)
      before = store_.shape().source(layer) == layer ? RowSets{} : set.sizes(row);
    set.add(row, r.plan->order().data(), r.at);
    reports_[i].working_sets = set.sizes(row);
    for (int w = 0; w < kWindows; ++w) reports_[i].working_sets[w] -= before[w];
  }
  if (step_.report) step_.report(layer, reports_.data());
}

}  // namespace riffle
