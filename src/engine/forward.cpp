// The forward pass: Llama's layers, for a prompt (layer by layer, chunk by chunk) and for a step.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

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
    backend_->store().reserve(s.kv, n0 + n);
    prefill_layers(s, tokens, scores, progress);
  } catch (...) {
    backend_->store().truncate(s.kv, n0);
    s.logits.swap(old_logits);
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
  const int64_t chunk = std::min<int64_t>(options_.options.prefill_chunk, n);
  const int64_t q_width = int64_t(c.n_heads) * c.head_dim, kv_width = int64_t(c.n_kv_heads) * c.head_dim;
  Activations& a = *act_;
  a.reserve(*backend_, c, n, chunk);
  a.positions.resize(chunk);
  backend_->rope_table(n0 + n);
  float* x = a.x.as<float>();
  backend_->embed(model_.weights.embedding, tokens.data(), n, x);
  const double total = static_cast<double>(n) * c.n_layers;

  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = model_.weights.layers[layer];
    std::byte* const* blocks = backend_->residency().prefill_layer(s.kv, layer, n0 + n);
    const int64_t n_blocks = options_.layout.blocks(n0 + n);
    for (int64_t first = 0; first < n; first += chunk) {
      const int64_t rows = std::min(chunk, n - first);
      // Nothing reads the last layer's output but the logits, so unless all of them are wanted only the last token of
      // the prompt goes beyond its keys and values.
      const bool only_kv = layer == c.n_layers - 1 && !scores;
      const int64_t skip = !only_kv ? 0 : first + rows == n ? rows - 1 : rows;
      float* xc = x + first * c.dim;
      backend_->rmsnorm(xc, w.attn_norm, rows, c.norm_eps, a.xb.as<float>());
      const LinearOut kv[2] = {{&w.wk, a.k.as<float>(), kv_width}, {&w.wv, a.v.as<float>(), kv_width}};
      backend_->linear(kv, 2, a.xb.as<float>(), rows, Phase::Prefill);
      std::iota(a.positions.begin(), a.positions.begin() + rows, static_cast<int32_t>(n0 + first));
      backend_->rope(a.k.as<float>(), rows, kv_width, c.n_kv_heads, a.positions.data());
      backend_->append(a.k.as<float>(), a.v.as<float>(), rows, n0 + first, blocks, n_blocks);
      if (skip < rows) {
        const LinearOut q{&w.wq, a.q.as<float>(), q_width};
        backend_->linear(&q, 1, a.xb.as<float>() + skip * c.dim, rows - skip, Phase::Prefill);
        backend_->rope(a.q.as<float>(), rows - skip, q_width, c.n_heads, a.positions.data() + skip);
        PrefillAttention att;
        att.q = a.q.as<float>();
        att.n = rows - skip;
        att.ldq = att.ldo = q_width;
        att.pos0 = n0 + first + skip;
        att.n_heads = c.n_heads;
        att.blocks = blocks;
        att.n_blocks = n_blocks;
        att.out = a.att.as<float>();
        backend_->attend_prefill(att);
        finish_layer(w, xc + skip * c.dim, rows - skip, Phase::Prefill);
      }
      const bool stop = progress && !progress(double(layer) * n + double(first + rows), total);
      if (take_abort() || stop) fail(RIFFLE_ABORTED, "aborted in layer %d of %d of the prefill", layer + 1, c.n_layers);
    }
    backend_->residency().finish_layer(s.kv, layer, n0 + n);
    backend_->store().build_digests(s.kv, n0 + n, layer);
  }

  if (scores)
    for (int64_t first = 0; first < n; first += kScoreRows) {
      const int64_t rows = std::min(kScoreRows, n - first);
      score_rows(x + first * c.dim, rows, tokens.data() + first + 1, std::min(rows, n - first - 1), scores + first);
    }
  s.logits.resize(c.vocab_size);
  backend_->rmsnorm(x + (n - 1) * c.dim, model_.weights.final_norm, 1, c.norm_eps, a.xb.as<float>());
  const LinearOut out{&model_.weights.output, s.logits.data(), c.vocab_size};
  backend_->linear(&out, 1, a.xb.as<float>(), 1, Phase::Decode);
}

void Engine::finish_layer(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  const Config& c = model_.config;
  Activations& a = *act_;
  const LinearOut out{&w.wo, a.xb.as<float>(), c.dim};
  backend_->linear(&out, 1, a.att.as<float>(), n, phase);
  backend_->add(x, a.xb.as<float>(), n * c.dim);
  backend_->rmsnorm(x, w.ffn_norm, n, c.norm_eps, a.xb.as<float>());
  const LinearOut ffn[2] = {{&w.w1, a.gate.as<float>(), c.hidden_dim}, {&w.w3, a.up.as<float>(), c.hidden_dim}};
  backend_->linear(ffn, 2, a.xb.as<float>(), n, phase);
  backend_->swiglu(a.gate.as<float>(), a.up.as<float>(), n * c.hidden_dim);
  const LinearOut down{&w.w2, a.xb.as<float>(), c.dim};
  backend_->linear(&down, 1, a.gate.as<float>(), n, phase);
  backend_->add(x, a.xb.as<float>(), n * c.dim);
}

// out[i] tells of the logits of row i; next[i] (n_next of them) is the token that really follows.
void Engine::score_rows(const float* x, int64_t n, const int32_t* next, int64_t n_next, riffle_score* out) {
  const Config& c = model_.config;
  Activations& a = *act_;
  Activations::grow(*backend_, a.logits, n * c.vocab_size);
  Activations::grow(*backend_, a.xb, n * c.dim);
  backend_->rmsnorm(x, model_.weights.final_norm, n, c.norm_eps, a.xb.as<float>());
  const LinearOut head{&model_.weights.output, a.logits.as<float>(), c.vocab_size};
  backend_->linear(&head, 1, a.xb.as<float>(), n, Phase::Prefill);
  threads_->parallel_for(n, [&](int64_t i, int) {
    const float* logits = a.logits.as<float>() + i * c.vocab_size;
    const float* best = std::max_element(logits, logits + c.vocab_size);
    double sum = 0;
    for (int v = 0; v < c.vocab_size; ++v) sum += std::exp(static_cast<double>(logits[v]) - *best);
    const double lse = *best + std::log(sum);
    out[i].logsumexp = static_cast<float>(lse);
    out[i].argmax = static_cast<int32_t>(best - logits);
    out[i].next_logprob = i < n_next ? static_cast<float>(logits[next[i]] - lse) : 0.f;
  });
}

void Engine::step(std::span<Sequence* const> sequences, std::span<const int32_t> tokens) {
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
    s->logits.reserve(model_.config.vocab_size);
    backend_->store().reserve(s->kv, s->kv.n_tokens + 1);
  }
  for (size_t first = 0; first < sequences.size(); first += group) {
    const size_t count = std::min(group, sequences.size() - first);
    step_group(sequences.subspan(first, count), tokens.subspan(first, count));
  }
}

void Engine::step_group(std::span<Sequence* const> sequences, std::span<const int32_t> tokens) {
  const auto start = Clock::now();
  const Config& c = model_.config;
  const int64_t n = static_cast<int64_t>(sequences.size());
  const int64_t q_width = int64_t(c.n_heads) * c.head_dim, kv_width = int64_t(c.n_kv_heads) * c.head_dim;
  Activations& a = *act_;
  a.reserve(*backend_, c, n, n);
  Activations::grow(*backend_, a.logits, n * c.vocab_size);
  a.positions.resize(std::max<size_t>(a.positions.size(), n));
  a.sequences.resize(n);
  a.reports.resize(n * c.n_kv_heads);
  int64_t longest = 0;
  for (int64_t i = 0; i < n; ++i) {
    a.sequences[i] = &sequences[i]->kv;
    a.positions[i] = static_cast<int32_t>(sequences[i]->kv.n_tokens);
    longest = std::max(longest, sequences[i]->kv.n_tokens + 1);
  }
  // The table grows by 4,096 positions, so that it does not grow at every step.
  backend_->rope_table(std::min(n_ctx(), (longest + 4095) / 4096 * 4096));
  backend_->residency().activate(a.sequences.data(), n, row_slots(selection()));

  float* x = a.x.as<float>();
  backend_->embed(model_.weights.embedding, tokens.data(), n, x);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const LayerWeights& w = model_.weights.layers[layer];
    backend_->rmsnorm(x, w.attn_norm, n, c.norm_eps, a.xb.as<float>());
    const LinearOut qkv[3] = {
        {&w.wq, a.q.as<float>(), q_width}, {&w.wk, a.k.as<float>(), kv_width}, {&w.wv, a.v.as<float>(), kv_width}};
    backend_->linear(qkv, 3, a.xb.as<float>(), n, Phase::Decode);
    backend_->rope(a.q.as<float>(), n, q_width, c.n_heads, a.positions.data());
    backend_->rope(a.k.as<float>(), n, kv_width, c.n_kv_heads, a.positions.data());
    backend_->append_tails(a.k.as<float>(), a.v.as<float>(), a.sequences.data(), n, layer);
    DecodeAttention att;
    att.layer = layer;
    att.sequences = a.sequences.data();
    att.n = n;
    att.q = a.q.as<float>();
    att.n_heads = c.n_heads;
    att.out = a.att.as<float>();
    att.selector = layer < selection().dense_layers ? dense_.get() : selector_.get();
    att.lookahead = selection().lookahead;
    att.coverage = coverage_;
    att.reports = a.reports.data();
    backend_->attend_decode(att);
    for (int64_t i = 0; i < n; ++i) count_step(*sequences[i], i, layer);
    finish_layer(w, x, n, Phase::Decode);
  }
  backend_->rmsnorm(x, model_.weights.final_norm, n, c.norm_eps, a.xb.as<float>());
  const LinearOut out{&model_.weights.output, a.logits.as<float>(), c.vocab_size};
  backend_->linear(&out, 1, a.xb.as<float>(), n, Phase::Decode);

  const double seconds = seconds_since(start);
  for (int64_t i = 0; i < n; ++i) {
    Sequence& s = *sequences[i];
    const float* logits = a.logits.as<float>() + i * c.vocab_size;
    s.logits.assign(logits, logits + c.vocab_size);
    s.tokens.push_back(tokens[i]);
    ++s.kv.n_tokens;
    backend_->residency().commit(s.kv);
    if (s.kv.n_tokens % options_.layout.block_size == 0) backend_->store().build_digests(s.kv, s.kv.n_tokens);
    ++s.counts.decode_tokens;
    ++s.counts.decode_steps;
    s.counts.decode_seconds += seconds;
  }
  counts_.decode_tokens += n;
  ++counts_.decode_steps;
  counts_.decode_seconds += seconds;
}

void Engine::count_step(Sequence& s, int64_t index, int layer) {
  const int heads = model_.config.n_kv_heads;
  for (int h = 0; h < heads; ++h) {
    const RowReport& r = act_->reports[index * heads + h];
    for (Counts* c : {&counts_, &s.counts}) {
      c->kv_blocks_total += r.n_blocks;
      c->kv_blocks_read += r.n_read;
      c->pool_lookups += r.lookups;
      c->pool_hits += r.lookups - r.misses;
      c->loaded_bytes += uint64_t(r.misses) * options_.layout.bytes();
    }
    if (trace_) trace_(s.session, s, layer, h, r);
  }
}

}  // namespace riffle
