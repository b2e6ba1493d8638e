#include "engine/draft_head.h"

#include <algorithm>

#include "backend/draft_buffers.h"
#include "engine/host_drafts.h"
#include "engine/plan/draft_plan.h"

namespace riffle {

struct DraftHead::Buffers : DraftBuffers {
  ForwardBuffers layer;
  int64_t rows = 0;
  uint64_t growths = 0;

  void reserve(Device& device, const Config& c, int64_t n) {
    if (rows >= n) return;
    rows = 0;
    ++growths;
    const auto grow = [&](Buffer& buffer, uint64_t bytes) {
      buffer = Buffer();  // frees the old one first: both may not fit on a GPU
      buffer = device.allocate(bytes);
    };
    for (const DraftBuffer& b : draft_buffers(c, n)) grow(this->*b.buffer, b.bytes);
    for (const ForwardBuffer& b : forward_buffers(c, n, 0)) grow(layer.*b.buffer, b.bytes);
    rows = n;
  }
};

static std::unique_ptr<DraftStore> make_store(const Model& head, const ResolvedOptions& options,
                                              ThreadPool* threads, Device& device) {
  if (auto store = device.make_drafts(head)) return store;
  return make_host_drafts(head, draft_options(options), threads);
}

DraftHead::DraftHead(const Model& model, const ResolvedOptions& options, ThreadPool* threads,
                     Device& device)
    : model_(draft_model(model)),
      whole_(model),
      n_ctx_(options.options.n_ctx),
      window_(model_->config.layers[0].window),
      store_(make_store(*model_, options, threads, device)),
      device_(store_->device()),
      ops_(*model_, device_),
      buffers_(std::make_unique<Buffers>()) {
  const Config& c = model_->config;
  for (const Rope& rope : c.ropes)
    ropes_.push_back(rope_frequencies(rope, c.rope_head(rope), static_cast<int>(n_ctx_)));
}

DraftHead::~DraftHead() = default;

void DraftHead::drop(std::unique_ptr<DraftState>& state) { state.reset(); }

void DraftHead::add_rows(std::unique_ptr<DraftState>& state, std::span<const int32_t> held,
                         int64_t first, const float* rows, int64_t n) {
  const int64_t dim = model_->config.dim;
  try {
    if (!state) {
      auto fresh = std::make_unique<DraftState>();
      fresh->kv = store_->create();
      fresh->rows = device_.allocate(waiting_bytes(model_->config));
      state = std::move(fresh);
    }
    DraftState& s = *state;
    if (first < s.first_row || first > s.first_row + s.n_rows) s.first_row = first;
    s.n_rows = first - s.first_row;
    if (s.n_rows + n > kWaitingRows) {
      settle(s, held);
      // A prompt's rows are taken at once, except the last, whose next token is not known.
      const int64_t known =
          std::clamp<int64_t>(static_cast<int64_t>(held.size()) - 1 - first, 0, n);
      if (known > 0) {
        feed(s, held.subspan(first + 1, known), rows);
        s.paired = s.first_row = first + known;
        s.n_rows = 0;
      }
      first += known, rows += known * dim, n -= known;
      n = std::min(n, kWaitingRows - s.n_rows);
    }
    device_.copy(rows, n * dim, s.rows.as<float>() + s.n_rows * dim);
    s.n_rows += n;
  } catch (const std::exception&) {
    drop(state);
  }
}

void DraftHead::cut(std::unique_ptr<DraftState>& state, int64_t n_tokens) {
  if (!state) return;
  DraftState& s = *state;
  s.n_rows = std::clamp<int64_t>(n_tokens - s.first_row, 0, s.n_rows);
  // The last pair of the sequence is that of its last two tokens.
  const int64_t pairs = std::max<int64_t>(0, n_tokens - 1), gone = s.paired - pairs;
  if (gone <= 0) return;
  s.paired = pairs;
  const int64_t keep = s.kv->n_pairs - gone;
  if (keep <= 0 || !store_->cut(*s.kv, keep)) drop(state);
}

// Computes the head's input x for n pairs, whose embeddings and final norm's outputs are in the
// buffers.
void DraftHead::pair(int64_t n, Phase phase) {
  const int64_t dim = model_->config.dim;
  const DraftWeights& draft = whole_.weights.draft;
  const Buffers& b = *buffers_;
  auto* const both = b.both.as<float>();
  device_.norm_rows(b.embeddings.as<float>(), n, draft.embed_norm, both, 2 * dim);
  device_.norm_rows(b.hidden.as<float>(), n, draft.hidden_norm, both + dim, 2 * dim);
  Linear in;
  in.x = both;
  in.n = n;
  in.outs[0] = {&draft.proj, b.x.as<float>(), dim};
  in.phase = phase;
  device_.linear(in);
}

// Gives the layer the keys and values of pairs whose guesses are not wanted. tokens: those that
// follow the rows.
void DraftHead::feed(DraftState& s, std::span<const int32_t> tokens, const float* rows) {
  const Config& c = model_->config;
  const LayerWeights& w = model_->weights.layers[0];
  const int64_t n = static_cast<int64_t>(tokens.size());
  const int64_t chunk = std::min(n, store_->append_rows());
  buffers_->reserve(device_, c, chunk);
  device_.rope_table(s.kv->n_pairs + n, ropes_);
  const Buffers& b = *buffers_;
  for (int64_t first = 0; first < n; first += chunk) {
    const int64_t some = std::min(chunk, n - first);
    const Phase phase = store_->append_phase(some);
    auto *k = b.layer.k.as<float>(), *v = b.layer.v.as<float>();
    device_.embed(whole_.weights.draft.embedding, tokens.data() + first, some,
                  b.embeddings.as<float>());
    device_.norm_rows(rows + first * c.dim, some, whole_.weights.final_norm, b.hidden.as<float>(),
                      c.dim);
    pair(some, phase);
    Linear kv;
    kv.x = b.x.as<float>();
    kv.n = some;
    kv.norm = &w.attn_norm;
    kv.outs[0] = {&w.wk, k, c.kv_width(0), &w.bk};
    kv.outs[1] = {&w.wv, v, c.kv_width(0), &w.bv};
    kv.n_outs = 2;
    kv.phase = phase;
    device_.linear(kv);
    ops_.norm_qk(k, some, c.kv_width(0), w.k_norm);
    store_->append(*s.kv, k, v, some);
  }
}

// Feeds all pairs of the held tokens whose rows wait. At most the last token's row stays.
void DraftHead::settle(DraftState& s, std::span<const int32_t> held) {
  const int64_t dim = model_->config.dim, last = static_cast<int64_t>(held.size()) - 1;
  const int64_t end = std::min(s.first_row + s.n_rows, last),
                from = std::max(s.paired, s.first_row);
  if (from < end)
    feed(s, held.subspan(from + 1, end - from), s.rows.as<float>() + (from - s.first_row) * dim);
  s.paired = std::max(s.paired, end);
  if (end <= s.first_row) return;
  const int64_t gone = end - s.first_row;
  s.n_rows = std::min<int64_t>(1, s.n_rows - gone);
  if (s.n_rows > 0) device_.copy(s.rows.as<float>() + gone * dim, dim, s.rows.as<float>());
  s.first_row = end;
}

int64_t DraftHead::guess(std::span<DraftRequest> requests) {
  std::vector<DraftRequest*> ready;
  int64_t fed = 0;
  for (DraftRequest& r : requests) {
    const int64_t n = static_cast<int64_t>(r.held.size());
    r.most = std::min<int64_t>({r.most, kMostGuesses, n_ctx_ - n - 1});
    if (r.most < 1 || n < 1) continue;
    cut(*r.state, n);  // a step may have failed, or not have taken what it was guessed from
    if (!*r.state) continue;
    DraftState& s = **r.state;
    // Without the last token's row there is no pair to guess from.
    if (s.first_row > n - 1 || s.first_row + s.n_rows < n) continue;
    try {
      fed += n - s.paired;
      settle(s, r.held);
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

// Guesses the i-th token of each of these sequences. On entry the buffer of hidden rows has the
// rows of their pairs; afterwards those of the next pairs.
void DraftHead::guess_next(std::span<DraftRequest*> going, size_t i) {
  const Config& c = model_->config;
  const auto n = static_cast<int64_t>(going.size());
  std::vector<DraftKv*> sequences;
  std::vector<int32_t> tokens, drawn(n, kNotSampled);
  std::vector<SampleRequest> samples;
  int64_t longest = 0;
  for (DraftRequest* r : going) {
    sequences.push_back((*r->state)->kv.get());
    tokens.push_back(i == 0 ? r->next : r->guesses.back());
    longest = std::max(longest, sequences.back()->n_pairs + 1);
    if (r->request) samples.push_back(r->request(i));
  }
  device_.rope_table(std::min<int64_t>((longest + 4095) / 4096 * 4096, n_ctx_), ropes_);
  DraftPass pass;
  pass.sequences = sequences.data();
  pass.tokens = tokens.data();
  pass.samples = samples.size() == going.size() ? samples.data() : nullptr;
  pass.n = n;
  pass.program = buffers_->growths;
  const Buffers& b = *buffers_;
  auto* const x = b.x.as<float>();
  float* const logits = store_->logits_memory(n);
  const std::unique_ptr<Step> under_way = store_->begin_step(pass);
  under_way->run(
      [&] {
        under_way->embed(whole_.weights.draft.embedding, b.embeddings.as<float>());
        pair(n, Phase::Decode);
        ops_.attend(*under_way, 0, b.layer, x, n);
        device_.norm_rows(x, n, model_->weights.final_norm, b.hidden.as<float>(), c.dim);
        ops_.output(x, n, Phase::Decode, logits);
      },
      drawn.data());
  for (int64_t j = 0; j < n; ++j) {
    store_->commit(*sequences[j]);
    int32_t& token = drawn[j];
    if (token == kNotSampled)
      token = going[j]->draw({store_->logits(j), static_cast<size_t>(c.vocab_size)}, i);
    going[j]->guesses.push_back(token);
  }
}

// Each pass guesses one more token of every sequence that wants one.
void DraftHead::run(std::span<DraftRequest*> requests) {
  const int64_t dim = model_->config.dim;
  buffers_->reserve(device_, model_->config, static_cast<int64_t>(requests.size()));
  auto* const hidden = buffers_->hidden.as<float>();
  std::vector<int64_t> pairs;  // number of each sequence's pairs that stay
  for (size_t j = 0; j < requests.size(); ++j) {
    const DraftState& s = **requests[j]->state;
    pairs.push_back(s.kv->n_pairs + 1);
    device_.norm_rows(s.rows.as<float>(), 1, whole_.weights.final_norm,
                      hidden + static_cast<int64_t>(j) * dim, dim);
  }
  std::vector<DraftRequest*> going(requests.begin(), requests.end()), more;
  for (size_t i = 0; !going.empty(); ++i) {
    guess_next(going, i);
    more.clear();
    for (size_t j = 0; j < going.size(); ++j) {
      if (static_cast<int64_t>(i) + 1 >= going[j]->most) continue;
      const auto to = static_cast<int64_t>(more.size()), from = static_cast<int64_t>(j);
      if (to != from) device_.copy(hidden + from * dim, dim, hidden + to * dim);
      more.push_back(going[j]);
    }
    going.swap(more);
  }
  // The first pair of each is one of the sequence's tokens; the others are of guesses.
  for (size_t j = 0; j < requests.size(); ++j) {
    DraftState& s = **requests[j]->state;
    s.paired = static_cast<int64_t>(requests[j]->held.size());
    if (!store_->cut(*s.kv, pairs[j])) drop(*requests[j]->state);
  }
}

}  // namespace riffle
