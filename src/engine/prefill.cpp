// Reads a prompt layer by layer, chunk by chunk. A run can stop after any chunk and continue later.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "backend/score_rows.h"
#include "engine/activations.h"
#include "engine/draft_head.h"
#include "engine/engine.h"
#include "engine/layer_ops.h"
#include "kernels/common/agreed.h"
#include "util/error.h"

namespace riffle {

using Clock = std::chrono::steady_clock;

void Engine::prefill(Sequence& s, std::span<const int32_t> tokens, TokenScore* scores,
                     const Progress& progress) {
  const int64_t end = s.kv.n_tokens + static_cast<int64_t>(tokens.size());
  const auto run = begin_prefill(s, tokens, scores, {&end, 1});
  try {
    advance(*run, INFINITY, progress);
  } catch (...) {
    abandon(*run);
    throw;
  }
}

void Engine::require_prompt(int64_t n0, std::span<const int32_t> tokens) const {
  if (tokens.empty()) fail(RIFFLE_BAD_ARGUMENT, "the prompt is empty, expected at least one token");
  check_tokens(tokens);
  if (run_)
    fail(RIFFLE_BAD_ARGUMENT, "another prompt of this context is being read by its scheduler");
  const auto n = static_cast<int64_t>(tokens.size());
  if (n0 + n > n_ctx())
    fail(RIFFLE_CONTEXT_FULL, "the prompt has %lld tokens%s, but the context holds %lld",
         static_cast<long long>(n),
         n0 ? format(" and the session %lld", static_cast<long long>(n0)).c_str() : "",
         static_cast<long long>(n_ctx()));
}

std::unique_ptr<PrefillRun> Engine::begin_prefill(Sequence& s, std::span<const int32_t> tokens,
                                                  TokenScore* scores,
                                                  std::span<const int64_t> marks) {
  require_prompt(s.kv.n_tokens, tokens);
  auto run = std::make_unique<PrefillRun>();
  run->sequence = &s;
  run->scores = scores;
  run->n0 = s.kv.n_tokens;
  run->tokens.assign(tokens.begin(), tokens.end());
  add_marks(*run, marks);
  drop_ahead(s);
  own_row(s.logits);
  run->old_logits.swap(s.logits.own);
  run_ = run.get();
  const auto start = Clock::now();
  try {
    start_run(*run);
  } catch (...) {
    abandon(*run);
    throw;
  }
  run->seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return run;
}

// Adds no more marks than KvShape::most_blocks counts. Old marks stay until the prompt is read.
void Engine::add_marks(PrefillRun& r, std::span<const int64_t> marks) {
  const Marks& old = r.sequence->kv.marks;
  const int64_t end = r.n0 + r.n();
  r.marks = old;
  r.turns.assign(marks.begin(), marks.end());
  auto windows = static_cast<int>(old.end() - old.begin()) + 1;
  if (r.n0 > 0 && std::find(old.begin(), old.end(), r.n0) == old.end()) ++windows;
  for (const int64_t mark : marks) {
    if (mark < r.n0 || mark > end) continue;
    if (mark > r.n0 && mark < end && ++windows > Marks::kMost + 2) return;
    r.marks.add(mark);
  }
}

int64_t Engine::piece_rows(const Sequence& s, int64_t rows, int64_t left) const {
  rows = std::min(rows, left);
  if (rows == left || !options_.chooses_tiles()) return rows;
  const int64_t over = (s.kv.n_tokens + rows) % kQueryTile;
  return over < rows ? rows - over : std::min(left, rows + kQueryTile - over);
}

void Engine::start_run(PrefillRun& r) {
  Sequence& s = *r.sequence;
  const int64_t n = r.n();
  require_state(s);
  device_->kv().reserve(s.kv, r.n0 + n, r.marks);
  device_->kv().reserve_checkpoints(s.kv, r.n0 + n, r.turns);
  s.tokens.reserve(r.n0 + n);
  // With list positions a chunk attends to one list, whose window must hold all of the chunk.
  r.list = s.kv.unrotated;
  r.chunk =
      std::min<int64_t>({options_.options.prefill_chunk, n, r.list ? selection().local_tokens : n});
  // A selector that needs the prompt's last queries must find them all in the last chunk, so the
  // first chunk is the short one.
  r.short_chunk = selector_->prompt_queries() > 0 ? n % r.chunk : 0;
  const bool runs = runs_prompts();
  if (r.n0 == 0) s.kv.chose_tiles = false;
  // Chunks end where query tiles do, by absolute position. Selectors that need a list or a short
  // first chunk do not go with tiles (check_tiles).
  if (options_.chooses_tiles() && r.chunk < n && (r.n0 + r.chunk) % kQueryTile > 0)
    r.short_chunk = r.chunk - (r.n0 + r.chunk) % kQueryTile;
  r.prompt = device_->begin_prompt({&s.kv, runs ? n : 0, r.n0 + n, r.chunk, bool(r.scores)});
  r.prompt->check(*selector_);
  if (!runs) return;
  act_->reserve_prompt(*r.prompt, model_.config, r.chunk, r.scores ? std::min(kScoreRows, n) : 0);
  act_->reserve_step(*device_, model_.config, 1);
  device_->rope_table(rope_positions(r.n0 + n), ropes_);
}

void Engine::end_prompt(PrefillRun& r) {
  act_->prompt = {};
  r.prompt.reset();
}

void Engine::abandon(PrefillRun& r) {
  if (r.over) return;
  r.over = true;
  run_ = nullptr;
  end_prompt(r);
  r.sequence->logits.own.swap(r.old_logits);
  r.sequence->tokens.resize(r.n0);
  try {
    device_->kv().truncate(r.sequence->kv, r.n0);
  } catch (const Error&) {  // the device is lost: the first error says why
  }
}

int64_t Engine::next_rows(const PrefillRun& r) const {
  return r.first == 0 && r.short_chunk > 0 ? r.short_chunk : std::min(r.chunk, r.n() - r.first);
}

bool Engine::advance(PrefillRun& r, double budget, const Progress& progress) {
  if (r.over) return true;
  const auto start = Clock::now();
  const double total = static_cast<double>(r.n()) * model_.config.n_layers;
  for (double spent = 0; r.layer < model_.config.n_layers;) {
    const int64_t rows = next_rows(r);
    if (spent > 0 && spent + static_cast<double>(rows) > budget) break;
    spent += static_cast<double>(rows);
    try {
      run_piece(r, rows);
    } catch (...) {
      abandon(r);
      throw;
    }
    const bool stop = progress && !progress(r.done, total);
    if (take_abort() || stop)
      fail(RIFFLE_ABORTED, "aborted in layer %d of %d of the prefill",
           std::min(r.layer + 1, model_.config.n_layers), model_.config.n_layers);
  }
  if (r.layer == model_.config.n_layers) {
    try {
      finish_run(r);
    } catch (...) {
      abandon(r);
      throw;
    }
  }
  r.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (!r.over) return false;
  for (Counts* c : {&counts_, &r.sequence->counts}) {
    c->prefill_tokens += r.n();
    c->prefill_seconds += r.seconds;
  }
  return true;
}

// Runs the next rows of the current layer, or the first rows of a new one.
void Engine::run_piece(PrefillRun& r, int64_t rows) {
  r.prompt->check(*selector_);
  if (r.first == 0) {
    r.prompt->begin_layer(r.layer);
    if (shape_.heads(r.layer) > 0)
      r.kv_blocks = std::max(r.kv_blocks,
                             static_cast<int64_t>(r.prompt->held() / shape_.block_bytes(r.layer)));
  }
  if (runs_prompts()) run_rows(r, rows);
  else
    r.pairs += static_cast<double>(rows) *
               (static_cast<double>(r.n0 + r.first) + (rows + 1) / 2.0);  // as run_rows does
  r.first += rows;
  r.done += static_cast<double>(rows);
  if (r.first < r.n()) return;
  if (options_.attention) {  // the KV is the source's
    for (int64_t first = 0; shape_.heads(r.layer) > 0 && first < r.n(); first += r.chunk)
      r.prompt->fill_from(*options_.attention, r.n0 + first, std::min(r.chunk, r.n() - first));
    if (r.sequence->kv.selection && shape_.selects(r.layer)) end_sourced_prompt(r);
  }
  r.prompt->finish_layer();
  r.first = 0;
  ++r.layer;
}

void Engine::run_rows(PrefillRun& r, int64_t rows) {
  const Config& c = model_.config;
  const LayerWeights& w = model_.weights.layers[r.layer];
  const int64_t n0 = r.n0, n = r.n(), first = r.first;
  const Activations::Rows& a = act_->prompt;
  // Only the logits need the last layer's output, so unless all of them are needed, only the last
  // token of the prompt goes beyond the last keys and values that a layer keeps.
  const int last = c.last_keeper();
  const bool only_kv = r.layer >= last && !r.scores;
  // A list is chosen by all queries of its chunk.
  const int64_t wanted =
      r.list ? rows : std::min<int64_t>(rows, std::max(1, selector_->prompt_queries()));
  const int64_t skip = !only_kv ? 0 : first + rows == n ? rows - wanted : rows;
  // The MTP layer needs the output of more rows. These are computed first and on their own, so that
  // the bits of the other rows are the same without it.
  const int64_t for_drafts =
      drafts() ? std::clamp<int64_t>(n - head_->rows_wanted() - first, 0, skip) : skip;
  const std::pair<int64_t, int64_t> parts[] = {{for_drafts, skip}, {skip, rows}};
  // Next come the next rows of this layer, which the first layer makes itself, or the first rows of
  // the next layer.
  const bool fresh = r.layer == 0, last_rows = first + rows == n;
  const int64_t next = !last_rows ? first + rows : r.layer + 1 < c.n_layers ? 0 : -1;
  float* xc = r.prompt->rows(first, rows, fresh, fresh && !last_rows ? -1 : next);
  if (fresh) {
    device_->embed(model_.weights.embedding, r.tokens.data() + first, rows, xc);
    ops_->norm_embeddings(xc, rows);
  }
  if (for_drafts == rows && r.layer > last) return;
  if (!c.attends(r.layer) && !c.recurs(r.layer)) {
    for (const auto& [begin, end] : parts)
      if (begin < end) device_->ffn(w, xc + begin * c.dim, end - begin, Phase::Prefill);
    return;
  }
  if (c.recurs(r.layer)) {
    ops_->mix_in(w, xc, rows, Phase::Prefill, a.q.as<float>());
    r.prompt->recur(a.q.as<float>(), rows, n0 + first, a.att.as<float>());
    for (const auto& [begin, end] : parts)
      if (begin < end)
        ops_->finish_layer(w, a.att.as<float>() + begin * recurrent_out(c), a.q.as<float>(),
                           nullptr, xc + begin * c.dim, end - begin, Phase::Prefill);
    return;
  }
  Linear qkv;
  qkv.x = xc;
  qkv.n = rows;
  qkv.norm = &w.attn_norm;
  qkv.phase = Phase::Prefill;
  if (c.layers[r.layer].kv_source >= 0) {
    qkv.outs[2] = ops_->query_product(w, r.layer, a);
    for (const auto& [begin, end] : parts)
      if (begin < end) attend_rows(r, xc, begin, end, &qkv);
    return;
  }
  qkv.outs[0] = ops_->key_product(w, r.layer, a);
  qkv.outs[1] = ops_->value_product(w, r.layer, a);
  qkv.outs[2] = ops_->query_product(w, r.layer, a);
  qkv.n_outs = skip == 0 ? 3 : 2;
  device_->linear(qkv);
  ops_->finish_keys(w, r.layer, rows, a);
  r.prompt->append(a.k.as<float>(), a.v.as<float>(), rows, n0 + first);
  for (const auto& [begin, end] : parts)
    if (begin < end) attend_rows(r, xc, begin, end, skip == 0 ? nullptr : &qkv);
}

// Attends with rows [begin, end) of a chunk, whose keys and values the layer holds, and finishes
// the layer for them. qkv: the arguments of the chunk's product; null if it made the queries.
void Engine::attend_rows(PrefillRun& r, float* xc, int64_t begin, int64_t end, const Linear* qkv) {
  const Config& c = model_.config;
  const LayerWeights& w = model_.weights.layers[r.layer];
  const Activations::Rows& a = act_->prompt;
  const int64_t n = end - begin, pos0 = r.n0 + r.first + begin, q_width = c.q_width(r.layer);
  float* const x = xc + begin * c.dim;
  if (qkv) {
    Linear q = *qkv;
    q.x = x;
    q.n = n;
    q.outs[0] = qkv->outs[2];
    q.n_outs = 1;
    device_->linear(q);
  }
  const bool expands = c.latent && r.prompt->expands_latents(n);
  if (c.latent) {
    ops_->latent_queries(w, r.layer, n, Phase::Prefill, a, expands);
  } else {
    ops_->take_queries(r.layer, n, a);
    if (!c.norm_after_rope) ops_->norm_qk(a.q.as<float>(), n, q_width, w.q_norm);
  }
  if (!r.list)
    device_->rope(a.q.as<float>(), n, q_width, c.heads(r.layer), pos0, c.query_rope(r.layer),
                  c.norm_after_rope ? &w.q_norm : nullptr);
  PromptAttention att;
  att.q = a.q.as<float>();
  att.n = n;
  att.ldq = att.ldo = q_width;
  att.pos0 = pos0;
  att.window = window(r.layer);
  if (options_.chooses_tiles() && att.window == 0) {
    att.share = options_.options.prefill_share;
    // If only the last query of the last layer is wanted, it is computed alone, and reads all keys.
    // So its query tile reads all keys in other cases too.
    att.whole_begin = r.n0;
    att.whole_end = r.n0 + r.n() - (r.layer >= c.last_keeper());
  }
  att.last = r.first + end == r.n() && !options_.attention;
  att.out = a.att.as<float>();
  if (expands) att.raw = a.att.as<float>(), att.values = a.q.as<float>();
  att.selector = r.list && r.layer >= selection().dense_layers ? selector_.get() : nullptr;
  if (const auto lists = selector_->lists()) att.query_position = lists->last;
  r.prompt->attend(att);
  r.pairs +=
      static_cast<double>(n) * (static_cast<double>(pos0) + static_cast<double>(n + 1) / 2.0);
  float* const attended = expands ? att.values : ops_->attended(w, r.layer, n, Phase::Prefill, a);
  ops_->finish_layer(w, attended, a.q.as<float>(), c.query_gate ? a.gate.as<float>() : nullptr, x,
                     n, Phase::Prefill, [&] {
                       device_->add_layer_embedding(r.layer, r.tokens.data() + r.first + begin, n,
                                                    x, Phase::Prefill);
                     });
}

void Engine::finish_run(PrefillRun& r) {
  const Config& c = model_.config;
  const int64_t n = r.n();
  Sequence& s = *r.sequence;
  if (!runs_prompts()) {
    if (r.scores) std::fill_n(r.scores, n, TokenScore{});
  } else {
    if (r.scores)
      for (int64_t first = 0; first < n; first += kScoreRows) {
        const int64_t rows = std::min(kScoreRows, n - first);
        const float* x = r.prompt->rows(first, rows, false, -1);
        score_rows(x, rows, r.tokens.data() + first + 1, std::min(rows, n - first - 1),
                   r.scores + first);
      }
    s.logits.own.resize(c.vocab_size);
    float* logits = device_->logits_memory(1);
    ops_->output(r.prompt->rows(n - 1, 1, false, -1), 1, Phase::Decode, logits);
    device_->read(logits, c.vocab_size, s.logits.own.data());
  }
  s.tokens.insert(s.tokens.end(), r.tokens.begin(), r.tokens.end());
  if (drafts()) {
    const int64_t wanted = std::min(n, head_->rows_wanted());
    for (int64_t first = n - wanted; first < n; first += r.chunk) {
      const int64_t some = std::min(r.chunk, n - first);
      head_->add_rows(s.draft, s.tokens, r.n0 + first, r.prompt->rows(first, some, false, -1),
                      some);
    }
  }
  if (options_.attention)
    s.logits.own.assign(c.vocab_size, 0.f);        // meaningless, but a token can be drawn
  std::shared_ptr<const std::vector<float>> kept;  // before the commit, since it takes memory
  if (!s.kv.next_states.empty() && s.kv.next_states.back().kind == Checkpoint::TURN &&
      !s.kv.of_request)
    kept = std::make_shared<const std::vector<float>>(s.logits.own);
  if (r.prompt->tiles().read < r.prompt->tiles().seen) s.kv.chose_tiles = true;
  for (Counts* c : {&counts_, &s.counts}) {
    c->prefill_tiles_seen += r.prompt->tiles().seen;
    c->prefill_tiles_read += r.prompt->tiles().read;
  }
  r.prompt->commit(r.marks);
  if (kept) s.kv.states.back().logits = kept;
  end_prompt(r);
  device_->kv().clear_working_set(s.kv);
  s.working_sets.reset();
  r.over = true;
  run_ = nullptr;
}

// The selector learns from the source's queries in place of a prompt's last ones.
void Engine::end_sourced_prompt(const PrefillRun& r) {
  const Config& c = model_.config;
  Sequence& s = *r.sequence;
  const LayerKv& kv = r.prompt->layer();
  const int64_t queries = std::min<int64_t>(r.n(), std::max(1, selector_->prompt_queries()));
  const int heads = c.kv_heads(r.layer);
  const int64_t width = c.q_width(r.layer), pos0 = s.kv.n_tokens + r.n() - queries;
  std::vector<float> q(queries * width);
  for (int64_t i = 0; i < queries; ++i)
    options_.attention->query(shape_.source(r.layer), pos0 + i, c.heads(r.layer), heads,
                              c.head_size(r.layer), &q[i * width]);
  threads_->parallel_for(heads, [&](int64_t h, int) {
    PromptEnd end;
    end.layer = r.layer;
    end.head = static_cast<int>(h);
    end.q = q.data() + h * (width / heads);
    end.stride = width;
    end.n = static_cast<int>(queries);
    end.pos0 = pos0;
    end.begin = s.kv.n_tokens;
    end.blocks = kv.blocks + h * kv.n_blocks;
    s.kv.selection->end_prompt(end);
  });
}

// Fills out[i] from the logits of row i. next[i] (n_next of them) is the token that follows the
// row.
void Engine::score_rows(const float* x, int64_t n, const int32_t* next, int64_t n_next,
                        TokenScore* out) {
  const Config& c = model_.config;
  Activations& a = *act_;
  float* scored = a.prompt.logits.as<float>();
  ops_->output(x, n, Phase::Prefill, scored);
  a.scored.resize(n * c.vocab_size);
  device_->read(scored, n * c.vocab_size, a.scored.data());
  threads_->parallel_for(n, [&](int64_t i, int) {
    const float* logits = a.scored.data() + i * c.vocab_size;
    const float* best = std::max_element(logits, logits + c.vocab_size);
    double sum = 0;
    for (int v = 0; v < c.vocab_size; ++v) sum += std::exp(static_cast<double>(logits[v]) - *best);
    const double lse = *best + std::log(sum);
    out[i].logsumexp = static_cast<float>(lse);
    out[i].argmax = static_cast<int32_t>(best - logits);
    out[i].next_logprob = i < n_next ? static_cast<float>(logits[next[i]] - lse) : 0.f;
  });
}

}  // namespace riffle
