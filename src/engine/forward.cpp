// The forward pass: Llama's layers, for a prompt (layer by layer, chunk by chunk) and for a step.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/activations.h"
#include "engine/engine.h"
#include "util/error.h"

namespace riffle {

using Clock = std::chrono::steady_clock;

static double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rows of logits that are computed together when a prompt is scored: 64 rows of a 128K vocabulary are 32 MB.
static constexpr int64_t kScoreRows = 64;

void Engine::prefill(Sequence& s, std::span<const int32_t> tokens, riffle_score* scores, const Progress& progress) {
  if (tokens.empty()) fail(RIFFLE_BAD_ARGUMENT, "the prompt is empty, expected at least one token");
  check_tokens(tokens);
  const int64_t n0 = s.kv.n_tokens, n = static_cast<int64_t>(tokens.size());
  if (n0 + n > n_ctx())
    fail(RIFFLE_CONTEXT_FULL, "the prompt has %lld tokens and the session %lld, but the context holds %lld",
         static_cast<long long>(n), static_cast<long long>(n0), static_cast<long long>(n_ctx()));
  const auto start = Clock::now();
  std::vector<float> old_logits;
  old_logits.swap(s.logits);
  try {
    require_state(s);
    backend_->residency().reserve(s.kv, n0 + n);
    if (options_.trace) fill_from_trace(s, n, progress);
    else prefill_layers(s, tokens, scores, progress);
  } catch (...) {
    s.logits.swap(old_logits);
    try {
      backend_->residency().truncate(s.kv, n0);
    } catch (const Error&) {  // the device is lost: the first error says why
    }
    throw;
  }
  s.kv.n_tokens = n0 + n;
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  const double seconds = seconds_since(start);
  for (Counts* c : {&counts_, &s.counts}) {
    c->prefill_tokens += n;
    c->prefill_seconds += seconds;
  }
}

void Engine::prefill_layers(Sequence& s, std::span<const int32_t> tokens, riffle_score* scores,
                            const Progress& progress) {
  const Config& c = model_.config;
  const int64_t n0 = s.kv.n_tokens, n = static_cast<int64_t>(tokens.size());
  // Under list positions a chunk attends to one list, which must hold all of the chunk: in its window.
  const bool list = s.kv.unrotated;
  const int64_t chunk = std::min<int64_t>({options_.options.prefill_chunk, n, list ? selection().local_tokens : n});
  const int64_t q_width = int64_t(c.n_heads) * c.head_dim, kv_width = int64_t(c.n_kv_heads) * c.head_dim;
  Activations& a = *act_;
  a.reserve(*backend_, c, n, chunk);
  backend_->rope_table(rope_positions(n0 + n), rope_);
  float* x = a.x.as<float>();
  backend_->embed(model_.weights.embedding, tokens.data(), n, x);
  const double total = static_cast<double>(n) * c.n_layers;

  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = model_.weights.layers[layer];
    LayerKv layer_kv = backend_->residency().prefill_layer(s.kv, layer, n0 + n);
    layer_kv.unrotated = list;
    // A selector that looks at the prompt's last queries finds them all in the last chunk: the first one is the short one.
    const int64_t short_chunk = selector_->prompt_queries() > 0 ? n % chunk : 0;
    for (int64_t first = 0, rows; first < n; first += rows) {
      rows = first == 0 && short_chunk > 0 ? short_chunk : std::min(chunk, n - first);
      // Nothing reads the last layer's output but the logits, so unless all of them are wanted only the last token of
      // the prompt goes beyond its keys and values.
      const bool only_kv = layer == c.n_layers - 1 && !scores;
      // A list is chosen by all queries of its chunk.
      const int64_t wanted = list ? rows : std::min<int64_t>(rows, std::max(1, selector_->prompt_queries()));
      const int64_t skip = !only_kv ? 0 : first + rows == n ? rows - wanted : rows;
      float* xc = x + first * c.dim;
      Linear qkv;
      qkv.x = xc;
      qkv.n = rows;
      qkv.norm = &w.attn_norm;
      qkv.outs[0] = {&w.wk, a.k.as<float>(), kv_width, &w.bk};
      qkv.outs[1] = {&w.wv, a.v.as<float>(), kv_width, &w.bv};
      qkv.outs[2] = {&w.wq, a.q.as<float>(), q_width, &w.bq};
      qkv.n_outs = skip == 0 ? 3 : 2;
      qkv.phase = Phase::Prefill;
      backend_->linear(qkv);
      backend_->append(a.k.as<float>(), a.v.as<float>(), rows, n0 + first, layer_kv);
      if (skip < rows) {
        if (skip > 0) {
          Linear q = qkv;
          q.x = xc + skip * c.dim;
          q.n = rows - skip;
          q.outs[0] = qkv.outs[2];
          q.n_outs = 1;
          backend_->linear(q);
        }
        if (!list) backend_->rope(a.q.as<float>(), rows - skip, q_width, c.n_heads, n0 + first + skip);
        PrefillAttention att;
        att.q = a.q.as<float>();
        att.n = rows - skip;
        att.ldq = att.ldo = q_width;
        att.pos0 = n0 + first + skip;
        att.window = window(layer);
        att.sequence = &s.kv;
        att.layer = layer;
        att.last = first + rows == n;
        att.kv = layer_kv;
        att.out = a.att.as<float>();
        att.selector = list && layer >= selection().dense_layers ? selector_.get() : nullptr;
        att.vote_position = selection().local_tokens;
        backend_->attend_prefill(att);
        finish_layer(w, xc + skip * c.dim, rows - skip, Phase::Prefill);
      }
      const bool stop = progress && !progress(double(layer) * n + double(first + rows), total);
      if (take_abort() || stop) fail(RIFFLE_ABORTED, "aborted in layer %d of %d of the prefill", layer + 1, c.n_layers);
    }
    backend_->residency().finish_layer(s.kv, layer, n0 + n);
  }

  if (scores)
    for (int64_t first = 0; first < n; first += kScoreRows) {
      const int64_t rows = std::min(kScoreRows, n - first);
      score_rows(x + first * c.dim, rows, tokens.data() + first + 1, std::min(rows, n - first - 1), scores + first);
    }
  s.logits.resize(c.vocab_size);
  output(x + (n - 1) * c.dim, 1, Phase::Decode);
  backend_->read(a.logits.as<float>(), c.vocab_size, s.logits.data());
}

// Synthetic attention: the KV is what the trace says, so nothing of the model needs to run.
void Engine::fill_from_trace(Sequence& s, int64_t n, const Progress& progress) {
  const int layers = model_.config.n_layers;
  for (int layer = 0; layer < layers; ++layer) {
    const LayerKv kv = backend_->residency().prefill_layer(s.kv, layer, s.kv.n_tokens + n);
    backend_->fill_trace(*options_.trace, layer, s.kv.n_tokens, n, kv);
    if (s.kv.selection) end_traced_prompt(s, layer, n, kv);
    backend_->residency().finish_layer(s.kv, layer, s.kv.n_tokens + n);
    const bool stop = progress && !progress(double(layer + 1) * n, double(n) * layers);
    if (take_abort() || stop) fail(RIFFLE_ABORTED, "aborted in layer %d of %d of the prefill", layer + 1, layers);
  }
}

// What the selector learns from a prompt's last queries, it learns from the trace's.
void Engine::end_traced_prompt(Sequence& s, int layer, int64_t n, const LayerKv& kv) {
  const Config& c = model_.config;
  const int64_t queries = std::min<int64_t>(n, std::max(1, selector_->prompt_queries()));
  const int64_t width = int64_t(c.n_heads) * c.head_dim, pos0 = s.kv.n_tokens + n - queries;
  std::vector<float> q(queries * width);
  for (int64_t i = 0; i < queries; ++i)
    trace_query(*options_.trace, layer, pos0 + i, c.n_heads, c.n_kv_heads, c.head_dim, &q[i * width]);
  threads_->parallel_for(c.n_kv_heads, [&](int64_t h, int) {
    PromptEnd end;
    end.layer = layer;
    end.head = static_cast<int>(h);
    end.q = q.data() + h * (width / c.n_kv_heads);
    end.stride = width;
    end.n = static_cast<int>(queries);
    end.pos0 = pos0;
    end.begin = s.kv.n_tokens;
    end.blocks = kv.blocks + h * kv.n_blocks;
    s.kv.selection->end_prompt(end);
  });
}

void Engine::output(const float* x, int64_t n, Phase phase) {
  const int64_t vocab_size = model_.config.vocab_size;
  act_->grow(*backend_, act_->logits, n * vocab_size);
  Linear out;
  out.x = x;
  out.n = n;
  out.norm = &model_.weights.final_norm;
  out.outs[0] = {&model_.weights.output, act_->logits.as<float>(), vocab_size};
  out.phase = phase;
  backend_->linear(out);
}

void Engine::finish_layer(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  Linear out;
  out.x = act_->att.as<float>();
  out.n = n;
  out.outs[0] = {&w.wo, x, model_.config.dim, &w.bo};
  out.add = true;
  out.phase = phase;
  backend_->linear(out);
  backend_->ffn(w, x, n, phase);
}

// out[i] tells of the logits of row i; next[i] (n_next of them) is the token that really follows.
void Engine::score_rows(const float* x, int64_t n, const int32_t* next, int64_t n_next, riffle_score* out) {
  const Config& c = model_.config;
  Activations& a = *act_;
  output(x, n, Phase::Prefill);
  a.scored.resize(n * c.vocab_size);
  backend_->read(a.logits.as<float>(), n * c.vocab_size, a.scored.data());
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

void Engine::step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens, const SampleRequest* samples,
                  int32_t* sampled) {
  check_tokens(tokens);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->kv.n_tokens + 1 > n_ctx())
      fail(RIFFLE_CONTEXT_FULL, "session %zu of the step holds %lld tokens, as many as the context", i,
           static_cast<long long>(n_ctx()));
    if (sequences[i]->kv.n_tokens == 0)
      fail(RIFFLE_BAD_ARGUMENT, "session %zu of the step is empty: prefill it first", i);
  }
  size_t group = sequences.size();
  if (options_.pooled) {
    const int64_t fit = sequences_per_step(model_.config, selection(), options_.slots, options_.options.pool_per_layer);
    if (fit < 1)
      fail(RIFFLE_NO_SLOT, "a pool of %lld slots is too small for one iteration of this selection",
           static_cast<long long>(options_.slots));
    group = std::min<size_t>(group, fit);
  }
  // Memory for the new tokens first, so that what can fail fails before anything is changed.
  for (Sequence* s : sequences) {
    require_digests(*s);
    require_state(*s);
    s->next_logits.resize(model_.config.vocab_size);
    backend_->residency().reserve(s->kv, s->kv.n_tokens + 1);
  }
  for (size_t first = 0; first < sequences.size(); first += group) {
    const size_t count = std::min(group, sequences.size() - first);
    step_group(sequences.subspan(first, count), tokens.subspan(first, count), samples ? samples + first : nullptr,
               sampled + first);
  }
}

void Engine::step_group(std::span<Sequence* const> sequences, std::span<const int32_t> tokens,
                        const SampleRequest* samples, int32_t* sampled) {
  const auto start = Clock::now();
  const Config& c = model_.config;
  const int64_t n = static_cast<int64_t>(sequences.size());
  Activations& a = *act_;
  a.reserve(*backend_, c, n, n);
  a.grow(*backend_, a.logits, n * c.vocab_size);
  a.sequences.resize(n);
  a.host_logits.resize(n);
  int64_t longest = 0;
  for (int64_t i = 0; i < n; ++i) {
    a.sequences[i] = &sequences[i]->kv;
    a.host_logits[i] = sequences[i]->next_logits.data();
    longest = std::max(longest, sequences[i]->kv.n_tokens + 1);
  }
  // The table grows by 4,096 positions, so that it does not grow at every step.
  const int64_t positions = rope_positions(longest);
  backend_->rope_table(std::max(positions, std::min(n_ctx(), (positions + 4095) / 4096 * 4096)), rope_);
  backend_->residency().activate(a.sequences.data(), n, row_slots(selection()));

  Step step;
  step.sequences = a.sequences.data();
  step.tokens = tokens.data();
  step.n = n;
  step.selector = selector_.get();
  step.dense = dense_.get();
  step.dense_layers = selection().dense_layers;
  step.window = window(c.first_window_layer);
  step.first_window_layer = c.first_window_layer;
  step.lookahead = selection().lookahead;
  step.vote_position = selection().local_tokens;
  step.orders = bool(trace_);
  step.coverage = coverage_;
  step.samples = samples;
  step.trace = options_.trace ? &*options_.trace : nullptr;
  step.program = program_ + a.growths;  // both only grow
  step.report = [&](int layer, const RowReport* reports) {
    for (int64_t i = 0; i < n; ++i) count_step(*sequences[i], layer, reports + i * c.n_kv_heads);
  };
  try {
    if (backend_->begin_step(step)) run_step(n);
    backend_->end_step(a.logits.as<float>(), a.host_logits.data(), sampled);
  } catch (...) {
    backend_->abandon_step();
    for (Sequence* s : sequences)  // some layers may have taken the step in
      if (s->kv.selection) s->kv.selection->truncate(s->kv.n_tokens);
    throw;
  }

  const double seconds = seconds_since(start);
  for (int64_t i = 0; i < n; ++i) {
    Sequence& s = *sequences[i];
    s.logits.swap(s.next_logits);
    s.tokens.push_back(tokens[i]);
    ++s.kv.n_tokens;
    backend_->residency().commit(s.kv);
    ++s.counts.decode_tokens;
    ++s.counts.decode_steps;
    s.counts.decode_seconds += seconds;
  }
  counts_.decode_tokens += n;
  ++counts_.decode_steps;
  counts_.decode_seconds += seconds;
}

void Engine::profile_step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens, riffle_timing& timing) {
  if (!backend_->start_profile()) fail(RIFFLE_UNSUPPORTED, "device %s has no timers of its own", backend_->name());
  try {
    step(sequences, tokens);
  } catch (...) {
    backend_->finish_profile(timing);
    throw;
  }
  backend_->finish_profile(timing);
}

void Engine::run_step(int64_t n) {
  const Config& c = model_.config;
  Activations& a = *act_;
  const int64_t q_width = int64_t(c.n_heads) * c.head_dim, kv_width = int64_t(c.n_kv_heads) * c.head_dim;
  float* x = a.x.as<float>();
  backend_->embed_step(model_.weights.embedding, x);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = model_.weights.layers[layer];
    Linear qkv;
    qkv.x = x;
    qkv.n = n;
    qkv.norm = &w.attn_norm;
    qkv.outs[0] = {&w.wq, a.q.as<float>(), q_width, &w.bq};
    qkv.outs[1] = {&w.wk, a.k.as<float>(), kv_width, &w.bk};
    qkv.outs[2] = {&w.wv, a.v.as<float>(), kv_width, &w.bv};
    qkv.n_outs = 3;
    backend_->linear(qkv);
    backend_->append_step(layer, a.q.as<float>(), a.k.as<float>(), a.v.as<float>());
    backend_->attend_step(layer, a.q.as<float>(), a.att.as<float>());
    finish_layer(w, x, n, Phase::Decode);
  }
  output(x, n, Phase::Decode);
}

void Engine::count_step(Sequence& s, int layer, const RowReport* reports) {
  // What the query sees: a window's blocks and tokens, where the layer has one.
  const int64_t held = s.kv.n_tokens + 1, block_size = options_.layout.block_size;
  const int64_t before = window(layer) > 0 ? std::max<int64_t>(0, held - window(layer)) : 0;
  for (int h = 0; h < model_.config.n_kv_heads; ++h) {
    RowReport r = reports[h];
    r.n_tokens = held - before;
    if (r.tokens_read < 0) {  // whole blocks, but for what is not seen; the first and the last one are among them
      r.tokens_read = int64_t(r.n_read) * block_size - (int64_t(r.n_blocks) * block_size - held) - before % block_size;
    }
    for (Counts* c : {&counts_, &s.counts}) {
      c->kv_tokens_total += r.n_tokens;
      c->kv_tokens_read += r.tokens_read;
      c->index_bytes_read += r.index_bytes;
      if (h == 0) ++c->selections, c->cached_selections += !r.selected;
      c->kv_blocks_total += r.n_blocks - before / block_size;
      c->kv_blocks_read += r.n_read;
      c->pool_lookups += r.lookups;
      c->pool_hits += r.lookups - r.misses;
      c->loaded_bytes += uint64_t(r.misses) * options_.layout.bytes();
    }
    if (trace_) trace_(s.session, s, layer, h, r);
  }
}

}  // namespace riffle
