#include "engine/draft_head.h"

#include <algorithm>

#include "engine/plan/draft_plan.h"

namespace riffle {

struct DraftHead::Buffers {
  Buffer both, embeddings, hidden;  // [rows][2 dim], [rows][dim], [rows][dim]
  Buffer x;                         // [rows][dim]: the head's residual stream
  ForwardBuffers layer;
  int64_t rows = 0;

  void reserve(Device& device, const Config& c, int64_t n) {
    if (rows >= n) return;
    const auto floats = [&](int64_t width) { return device.allocate(n * width * sizeof(float)); };
    both = floats(2 * int64_t{c.dim});
    embeddings = floats(c.dim);
    hidden = floats(c.dim);
    x = floats(c.dim);
    for (const ForwardBuffer& b : forward_buffers(c, n, 0))
      layer.*b.buffer = device.allocate(b.bytes);
    rows = n;
  }
};

DraftHead::DraftHead(const Model& model, const ResolvedOptions& options, ThreadPool* threads)
    : model_(draft_model(model)),
      whole_(model),
      options_(draft_options(options)),
      shape_(kv_shape(model_->config, options_)),
      window_(model_->config.layers[0].window),
      device_(make_cpu_device(*model_, options_, threads)),
      ops_(*model_, *device_),
      dense_(make_dense()),
      buffers_(std::make_unique<Buffers>()) {
  const Config& c = model_->config;
  for (const Rope& rope : c.ropes)
    ropes_.push_back(rope_frequencies(rope, c.rope_head(rope), options_.options.n_ctx));
}

DraftHead::~DraftHead() = default;

void DraftHead::drop(std::unique_ptr<DraftState>& state) {
  if (state) device_->kv().destroy(state->kv);
  state.reset();
}

void DraftHead::add_rows(std::unique_ptr<DraftState>& state, int64_t first, const float* rows,
                         int64_t n) {
  const int64_t dim = model_->config.dim;
  try {
    if (!state) {
      auto fresh = std::make_unique<DraftState>();
      fresh->kv =
          device_->kv().create(options_.options.n_ctx, digest_spec(options_.options.selection));
      state = std::move(fresh);
    }
    DraftState& s = *state;
    const int64_t end = s.first_row + static_cast<int64_t>(s.rows.size()) / dim;
    if (first < s.first_row || first > end) {
      s.rows.clear();
      s.first_row = first;
    }
    s.rows.resize((first - s.first_row) * dim);
    s.rows.reserve(2 * window_ * dim);
    // While no guesses are wanted, rows gather.
    if (const int64_t held = first + n - s.first_row; held > 2 * window_) {
      const int64_t gone = std::min(first - s.first_row, held - window_);
      s.rows.erase(s.rows.begin(), s.rows.begin() + gone * dim);
      s.first_row += gone;
    }
    s.rows.insert(s.rows.end(), rows, rows + n * dim);
  } catch (const std::exception&) {
    drop(state);
  }
}

void DraftHead::cut(std::unique_ptr<DraftState>& state, int64_t n_tokens) {
  if (!state) return;
  DraftState& s = *state;
  const int64_t dim = model_->config.dim;
  if (n_tokens <= s.first_row) s.rows.clear();
  else if (const int64_t n = (n_tokens - s.first_row) * dim;
           n < static_cast<int64_t>(s.rows.size()))
    s.rows.resize(n);
  // The last pair of the sequence is that of its last two tokens.
  const int64_t pairs = std::max<int64_t>(0, n_tokens - 1), gone = s.paired - pairs;
  if (gone <= 0) return;
  s.paired = pairs;
  const int64_t keep = s.kv.n_tokens - gone;
  if (keep > 0 && device_->kv().host().reach(s.kv, keep) == keep)
    device_->kv().truncate(s.kv, keep);
  else drop(state);
}

// Writes to x the head's input for n pairs. rows: the residual stream or, if normed, the final
// norm's output.
void DraftHead::pair(const int32_t* tokens, const float* rows, bool normed, int64_t n, float* x) {
  const int64_t dim = model_->config.dim;
  const DraftWeights& draft = whole_.weights.draft;
  float *both = buffers_->both.as<float>(), *e = buffers_->embeddings.as<float>(),
        *h = buffers_->hidden.as<float>();
  device_->embed(draft.embedding, tokens, n, e);
  device_->norm_heads(e, n, 1, draft.embed_norm);
  std::copy_n(rows, n * dim, h);
  if (!normed) device_->norm_heads(h, n, 1, whole_.weights.final_norm);
  device_->norm_heads(h, n, 1, draft.hidden_norm);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(e + i * dim, dim, both + 2 * i * dim);
    std::copy_n(h + i * dim, dim, both + (2 * i + 1) * dim);
  }
  Linear in;
  in.x = both;
  in.n = n;
  in.outs[0] = {&draft.proj, x, dim};
  in.phase = n > kMostGuesses ? Phase::Prefill : Phase::Decode;
  device_->linear(in);
}

// Gives the layer the keys and values of pairs whose guesses are not wanted.
void DraftHead::feed(DraftState& s, std::span<const int32_t> tokens, const float* rows) {
  const Config& c = model_->config;
  const LayerWeights& w = model_->weights.layers[0];
  const int64_t n0 = s.kv.n_tokens, n = static_cast<int64_t>(tokens.size());
  const int64_t chunk = std::min<int64_t>(n, options_.options.prefill_chunk);
  device_->kv().reserve(s.kv, n0 + n, s.kv.marks);
  buffers_->reserve(*device_, c, chunk);
  const auto prompt = device_->begin_prompt({&s.kv, n, n0 + n, chunk});
  device_->rope_table(n0 + n, ropes_);
  prompt->begin_layer(0);
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t some = std::min(chunk, n - first);
    float *x = buffers_->x.as<float>(), *k = buffers_->layer.k.as<float>(),
          *v = buffers_->layer.v.as<float>();
    pair(tokens.data() + first, rows + first * c.dim, false, some, x);
    Linear kv;
    kv.x = x;
    kv.n = some;
    kv.norm = &w.attn_norm;
    kv.outs[0] = {&w.wk, k, c.kv_width(0), &w.bk};
    kv.outs[1] = {&w.wv, v, c.kv_width(0), &w.bv};
    kv.n_outs = 2;
    kv.phase = Phase::Prefill;
    device_->linear(kv);
    ops_.norm_qk(k, some, c.kv_width(0), w.k_norm);
    prompt->append(k, v, some, n0 + first);
  }
  prompt->finish_layer();
  prompt->commit(s.kv.marks);
}

// Requires: there are rows up to the last held token's. Feeds all pairs but the last one, of the
// last held token and the next, whose row is then the only one.
void DraftHead::catch_up(DraftState& s, const DraftRequest& r) {
  const int64_t dim = model_->config.dim, n = static_cast<int64_t>(r.held.size());
  const int64_t from = std::max({s.paired, s.first_row, n - window_});
  if (from < n - 1)
    feed(s, r.held.subspan(from + 1, n - 1 - from), s.rows.data() + (from - s.first_row) * dim);
  s.rows.erase(s.rows.begin(), s.rows.begin() + (n - 1 - s.first_row) * dim);
  s.rows.resize(dim);
  s.first_row = s.paired = n - 1;
}

int64_t DraftHead::guess(std::span<DraftRequest> requests) {
  std::vector<DraftRequest*> ready;
  int64_t fed = 0;
  for (DraftRequest& r : requests) {
    const int64_t n = static_cast<int64_t>(r.held.size());
    r.most = std::min<int64_t>({r.most, kMostGuesses, options_.options.n_ctx - n - 1});
    if (r.most < 1 || n < 1) continue;
    cut(*r.state, n);  // a step may have failed, or not have taken what it was guessed from
    if (!*r.state) continue;
    const DraftState& s = **r.state;
    const auto rows = static_cast<int64_t>(s.rows.size()) / model_->config.dim;
    // Without the last token's row there is no pair to guess from.
    if (s.first_row > n - 1 || s.first_row + rows < n) continue;
    try {
      fed += n - (*r.state)->paired;
      catch_up(**r.state, r);
      ready.push_back(&r);
    } catch (const std::exception&) {
      drop(*r.state);
    }
  }
  if (ready.empty()) return fed;
  try {
    run(ready);
  } catch (const std::exception&) {
    for (DraftRequest* r : ready) r->guesses.clear(), drop(*r->state);
  }
  return fed;
}

// Each pass guesses one more token of every sequence that wants one.
void DraftHead::run(std::span<DraftRequest*> requests) {
  const Config& c = model_->config;
  const int64_t dim = c.dim;
  std::vector<int64_t> pairs;  // number of each sequence's pairs that stay
  for (const DraftRequest* r : requests) pairs.push_back((*r->state)->kv.n_tokens + 1);
  std::vector<SequenceKv*> sequences;
  std::vector<int32_t> tokens;
  std::vector<float> rows;
  std::vector<DraftRequest*> going(requests.begin(), requests.end());
  for (int64_t i = 0; !going.empty(); ++i) {
    const auto n = static_cast<int64_t>(going.size());
    buffers_->reserve(*device_, c, n);
    sequences.clear(), tokens.clear();
    int64_t longest = 0;
    for (DraftRequest* r : going) {
      DraftState& s = **r->state;
      if (i == 0) rows.insert(rows.end(), s.rows.begin(), s.rows.end());
      tokens.push_back(i == 0 ? r->next : r->guesses.back());
      device_->kv().reserve(s.kv, s.kv.n_tokens + 1, s.kv.marks);
      sequences.push_back(&s.kv);
      longest = std::max(longest, s.kv.n_tokens + 1);
    }
    device_->rope_table(std::min<int64_t>((longest + 4095) / 4096 * 4096, options_.options.n_ctx),
                        ropes_);
    StepRequest step;
    step.sequences = sequences.data();
    step.tokens = tokens.data();
    step.n = n;
    step.selector = step.dense = dense_.get();
    step.shape = &shape_;
    step.report = [](int, const RowReport*) {};
    float* const x = buffers_->x.as<float>();
    float* const logits = device_->logits_memory(n);
    const std::unique_ptr<Step> under_way = device_->begin_step(step);
    under_way->run(
        [&] {
          pair(tokens.data(), rows.data(), i > 0, n, x);
          ops_.attend(*under_way, 0, buffers_->layer, x, n);
          ops_.output(x, n, Phase::Decode, logits);
        },
        nullptr);
    device_->norm_heads(x, n, 1, model_->weights.final_norm);
    rows.clear();
    std::vector<DraftRequest*> more;
    for (int64_t j = 0; j < n; ++j) {
      DraftRequest* const r = going[j];
      ++sequences[j]->n_tokens;
      device_->kv().commit(*sequences[j]);
      r->guesses.push_back(
          r->draw({device_->logits(j), static_cast<size_t>(c.vocab_size)}, static_cast<size_t>(i)));
      if (i + 1 >= r->most) continue;
      more.push_back(r);
      rows.insert(rows.end(), x + j * dim, x + (j + 1) * dim);
    }
    going.swap(more);
  }
  // The first pair of each is one of the sequence's tokens; the others are of guesses.
  for (size_t i = 0; i < requests.size(); ++i) {
    DraftState& s = **requests[i]->state;
    device_->kv().truncate(s.kv, pairs[i]);
    s.paired = static_cast<int64_t>(requests[i]->held.size());
  }
}

}  // namespace riffle
