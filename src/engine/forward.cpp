// The forward pass: the parts that prompts (prefill.cpp) and steps share, and a step.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/activations.h"
#include "engine/draft_head.h"
#include "engine/engine.h"
#include "engine/layer_ops.h"
#include "model/recurrence.h"
#include "util/error.h"

namespace riffle {

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rows of a sequence follow one another.
static bool first_row(std::span<Sequence* const> sequences, size_t i) {
  return i == 0 || sequences[i] != sequences[i - 1];
}
static bool last_row(std::span<Sequence* const> sequences, size_t i) {
  return i + 1 == sequences.size() || sequences[i] != sequences[i + 1];
}

int64_t Engine::room_ahead(const Sequence& s) const {
  const int64_t n = s.kv.n_tokens, block_size = shape_.block_size();
  const int64_t in_block = block_size - 1 - n % block_size;
  return std::max<int64_t>(0, std::min({int64_t(rows_ahead()), in_block, n_ctx() - n - 1}));
}

void Engine::check_step(std::span<Sequence* const> sequences) const {
  int64_t ahead = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = *sequences[i];
    ahead = first_row(sequences, i) ? 0 : ahead + 1;
    if (s.kv.n_tokens + 1 > n_ctx())
      fail(RIFFLE_CONTEXT_FULL, "session %zu of the step: its %lld tokens fill the context already",
           i, static_cast<long long>(n_ctx()));
    if (s.kv.n_tokens == 0)
      fail(RIFFLE_BAD_ARGUMENT, "session %zu of the step is empty: prefill it first", i);
    if (ahead > room_ahead(s))
      fail(RIFFLE_BAD_ARGUMENT, "session %zu of the step: %lld tokens ahead, expected at most %lld",
           i, static_cast<long long>(ahead), static_cast<long long>(room_ahead(s)));
  }
}

// Takes memory for the new tokens. Calls that can fail come before any change.
void Engine::prepare_step(std::span<Sequence* const> sequences) {
  size_t ahead = 0;
  ++steps_;
  n_ahead_ = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    ahead = first_row(sequences, i) ? 0 : ahead + 1;
    if (ahead > 0) {
      if (ahead_.size() == n_ahead_) ahead_.emplace_back();
      ahead_[n_ahead_++].logits.clear();
      continue;
    }
    drop_ahead(s);
    s.first_ahead = n_ahead_;
    require_digests(s);
    require_state(s);
    device_->kv().reserve(s.kv, s.kv.n_tokens + 1, s.kv.marks);
    // A state for each row, since any may be the last one that is accepted.
    const auto last = std::find_if(sequences.begin() + static_cast<int64_t>(i), sequences.end(),
                                   [&](const Sequence* other) { return other != &s; });
    device_->kv().reserve_rows(s.kv, last - sequences.begin() - static_cast<int64_t>(i));
  }
}

void Engine::step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                  const SampleRequest* samples, int32_t* sampled, const FindMask& find_mask) {
  check_tokens(tokens);
  check_step(sequences);
  const int64_t fit = device_->kv().sequences_per_step(row_slots(selection()));
  if (fit < 1)
    fail(RIFFLE_NO_SLOT, "a pool of %lld slots is too small for one iteration of this selection",
         static_cast<long long>(device_->kv().slots()));
  prepare_step(sequences);
  for (size_t first = 0, end; first < sequences.size(); first = end) {
    int64_t n = 0;  // sequences of the group
    for (end = first; end < sequences.size(); ++end)
      if (first_row(sequences, end) && n++ == fit) break;
    step_group(sequences.subspan(first, end - first), tokens.subspan(first, end - first),
               samples ? samples + first : nullptr, sampled ? sampled + first : nullptr,
               [&find_mask, first](int64_t row) { find_mask(static_cast<int64_t>(first) + row); });
  }
}

// Fills in the rows of a step as its device sees them. Returns the most tokens that a row sees.
int64_t Engine::place_rows(std::span<Sequence* const> sequences) {
  Activations& a = *act_;
  const size_t n = sequences.size();
  a.sequences.resize(n);
  a.ahead.resize(n);
  int64_t longest = 0;
  for (size_t i = 0; i < n; ++i) {
    Sequence& s = *sequences[i];
    a.sequences[i] = &s.kv;
    a.ahead[i] = first_row(sequences, i) ? 0 : a.ahead[i - 1] + 1;
    if (a.ahead[i] == 0) {
      s.next_working_sets.reset();
      if (working_set_ > 0) s.next_working_sets.emplace();
    }
    longest = std::max(longest, s.kv.n_tokens + a.ahead[i] + 1);
  }
  return longest;
}

void Engine::append_token(Sequence& s, int32_t token) {
  s.tokens.push_back(token);
  ++s.kv.n_tokens;
  device_->kv().commit(s.kv);
  ++s.counts.decode_tokens;
  ++counts_.decode_tokens;
}

void Engine::step_group(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                        const SampleRequest* samples, int32_t* sampled, FindMask find_mask) {
  const auto start = Clock::now();
  const Config& c = model_.config;
  const int64_t n = static_cast<int64_t>(sequences.size());
  Activations& a = *act_;
  own_rows_beside(sequences);
  a.reserve_step(*device_, c, n);
  const int64_t longest = place_rows(sequences);
  // The table grows by 4,096 positions, so that it does not grow at every step.
  const int64_t positions = rope_positions(longest);
  device_->rope_table(std::max(positions, std::min(n_ctx(), (positions + 4095) / 4096 * 4096)),
                      ropes_);

  StepRequest step;
  step.sequences = a.sequences.data();
  step.ahead = a.ahead.data();
  step.tokens = tokens.data();
  step.n = n;
  // Selector auto reads all of these sessions whole: dense gives the same bits with less work.
  const bool dense = longest < selector_->everything_below();
  step.selector = dense ? dense_.get() : selector_.get();
  step.dense = dense_.get();
  step.dense_layers = selection().dense_layers;
  step.shape = &shape_;
  step.lookahead = selector_->lookahead();
  step.row_slots = row_slots(selection());
  if (const auto lists = selector_->lists()) step.query_position = lists->last;
  step.orders = bool(report_);
  step.coverage = coverage_;
  step.working_set = working_set_;
  step.samples = samples;
  step.find_mask = std::move(find_mask);
  step.attention = options_.attention.get();
  step.program = program_ + a.growths;  // both only grow
  step.report = [&](int layer, const RowReport* reports) {
    for (int64_t i = 0; i < n; ++i)
      count_step(*sequences[i], step.position(i), last_row(sequences, i), layer,
                 reports + i * c.kv_heads(layer));
  };
  try {
    const std::unique_ptr<Step> under_way = device_->begin_step(step);
    under_way->run([&] { run_step(*under_way, n); }, sampled);
  } catch (...) {
    for (Sequence* s : sequences)  // some layers' state may include the step
      if (s->kv.selection) s->kv.selection->truncate(s->kv.n_tokens);
    throw;
  }

  for (size_t i = 0, end; drafts() && i < sequences.size(); i = end) {
    for (end = i + 1; end < sequences.size() && sequences[end] == sequences[i];) ++end;
    Sequence& s = *sequences[i];
    head_->add_rows(s.draft, s.tokens, s.kv.n_tokens, act_->x.as<float>() + i * c.dim,
                    static_cast<int64_t>(end - i));
  }
  append_rows(sequences, tokens, sampled, seconds_since(start));
}

// Ends the step. An error of one sequence does not stop the others: they have the logits of this
// step.
void Engine::append_rows(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                         const int32_t* sampled, double seconds) {
  std::exception_ptr error;
  stepped_.clear();
  ++counts_.decode_steps;
  counts_.decode_seconds += seconds;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    const auto row = static_cast<int64_t>(i);
    if (act_->ahead[i] > 0) {
      AheadToken& ahead = ahead_[s.end_ahead++];
      ahead.token = tokens[i];
      ahead.sampled = sampled ? sampled[i] : kNotSampled;
      ahead.logits.row = row;
      ++s.counts.lookup_proposed;
      ++counts_.lookup_proposed;
      continue;
    }
    stepped_.push_back(&s);
    s.logits.row = row;
    s.working_sets = s.next_working_sets;
    s.end_ahead = s.first_ahead;
    s.ahead_of_step = steps_;
    ++s.counts.decode_steps;
    s.counts.decode_seconds += seconds;
    try {
      append_token(s, tokens[i]);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void Engine::own_row(Logits& logits) {
  if (logits.row < 0) return;
  const float* row = device_->logits(logits.row);
  logits.own.assign(row, row + model_.config.vocab_size);
  logits.row = -1;
}

// The rows of the last step are overwritten by the next one. Sequences outside of that step get
// copies. Sequences in it need theirs only if it fails, and then the rows are still there.
void Engine::own_rows_beside(std::span<Sequence* const> sequences) {
  for (Sequence* s : stepped_)
    if (std::find(sequences.begin(), sequences.end(), s) == sequences.end()) own_row(s->logits);
  for (size_t i = 0; i < n_ahead_; ++i) own_row(ahead_[i].logits);  // rows of an earlier group
  stepped_.reserve(stepped_.size() + sequences.size());
}

std::span<const float> Engine::logits(const Sequence& s) {
  if (s.logits.row < 0) return s.logits.own;
  return {device_->logits(s.logits.row), static_cast<size_t>(model_.config.vocab_size)};
}

std::span<const float> Engine::own_logits(Sequence& s) {
  own_row(s.logits);
  return s.logits.own;
}

bool Engine::accept(Sequence& s, int32_t token, int32_t& sampled) {
  const bool waits = s.ahead_of_step == steps_ && s.first_ahead < s.end_ahead;
  if (!waits || ahead_[s.first_ahead].token != token) {
    drop_ahead(s);
    return false;
  }
  AheadToken& ahead = ahead_[s.first_ahead++];
  sampled = ahead.sampled;
  std::swap(s.logits, ahead.logits);
  append_token(s, token);
  ++s.counts.lookup_accepted;
  ++counts_.lookup_accepted;
  return true;
}

void Engine::profile_step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                          StepTiming& timing) {
  if (!device_->start_profile())
    fail(RIFFLE_UNSUPPORTED, "device %s has no timers of its own", device_->name());
  try {
    step(sequences, tokens);
  } catch (...) {
    device_->finish_profile(timing);
    throw;
  }
  device_->finish_profile(timing);
}

void Engine::run_step(Step& step, int64_t n) {
  const Config& c = model_.config;
  const Activations::Rows& a = act_->step;
  float* x = act_->x.as<float>();
  step.embed(model_.weights.embedding, x);
  ops_->norm_embeddings(x, n);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = model_.weights.layers[layer];
    if (!c.attends(layer) && !c.recurs(layer)) {
      device_->ffn(w, x, n, Phase::Decode);
      continue;
    }
    if (c.recurs(layer)) {
      ops_->mix_in(w, x, n, Phase::Decode, a.q.as<float>());
      step.recur(layer, a.q.as<float>(), a.att.as<float>());
      ops_->finish_layer(w, a.att.as<float>(), a.q.as<float>(), nullptr, x, n, Phase::Decode);
      continue;
    }
    ops_->attend(step, layer, a, x, n);
  }
  ops_->output(x, n, Phase::Decode, act_->logits);
}

// last: this is the sequence's last row in the step. By then the working set has the selections of
// all its rows.
void Engine::count_step(Sequence& s, int64_t position, bool last, int layer,
                        const RowReport* reports) {
  // Counts the blocks and tokens that the query sees: only the window's, if the layer has one.
  const int64_t held = position + 1, block_size = shape_.block_size();
  const BlockLayout layout = shape_.layout(layer);
  const int64_t before = window(layer) > 0 ? std::max<int64_t>(0, held - window(layer)) : 0;
  for (int h = 0; h < model_.config.kv_heads(layer); ++h) {
    RowReport r = reports[h];
    for (size_t i = 0; s.next_working_sets && last && i < r.working_sets.size(); ++i)
      (*s.next_working_sets)[i] += r.working_sets[i];
    r.n_tokens = held - before;
    if (r.tokens_read <
        0) {  // whole blocks, less the unseen tokens; the first and the last block are among them
      r.tokens_read = int64_t(r.n_read) * block_size - (int64_t(r.n_blocks) * block_size - held) -
                      before % block_size;
    }
    for (Counts* c : {&counts_, &s.counts}) {
      c->kv_tokens_total += r.n_tokens;
      c->kv_tokens_read += r.tokens_read;
      c->kv_bytes_read += r.tokens_read * layout.token_bytes();
      c->index_bytes_read += r.index_bytes;
      if (h == 0) ++c->selections, c->cached_selections += !r.selected;
      c->kv_blocks_total += r.n_blocks - before / block_size;
      c->kv_blocks_read += r.n_read;
      c->pool_lookups += r.lookups;
      c->pool_hits += r.lookups - r.misses;
      c->loaded_bytes += uint64_t(r.misses) * layout.bytes();
    }
    if (report_) report_(s.session, s, layer, h, r);
  }
}

}  // namespace riffle
