#include "engine/engine.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "engine/activations.h"
#include "engine/draft_head.h"
#include "engine/layer_ops.h"
#include "engine/plan/auto_selector.h"
#include "engine/plan/devices.h"
#include "model/key_centre.h"
#include "select/registry.h"
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle {

Engine::Engine(const Model& model, ResolvedOptions planned)
    : model_(model),
      options_(std::move(planned)),
      shape_(kv_shape(model.config, options_)),
      pace_(options_.options.draft == DraftKind::MTP) {
  const Config& c = model.config;
  for (const Rope& rope : c.ropes)
    ropes_.push_back(rope_frequencies(rope, c.rope_head(rope), n_ctx()));
  threads_ = std::make_unique<ThreadPool>(options_.options.n_threads);
  device_ = make_device(model, options_, threads_.get());
  if (options_.layout.transforms_keys()) device_->set_key_centres(key_centres(model, ropes_));
  ops_ = std::make_unique<LayerOps>(model, *device_);
  if (options_.drafts)
    head_ = std::make_unique<DraftHead>(model, options_, threads_.get(), *device_);
  dense_ = make_dense();
  selector_ = selector_of(selection());
  check_selector(*selector_, selection());
  act_ = std::make_unique<Activations>();
}

// Positions in a list need it.
static bool rotates_whole_heads(const Config& c) {
  const Rope& rope = c.ropes[0];
  return rope.rotated == 0 || rope.rotated == c.rope_head(rope);
}

Engine::~Engine() = default;
Sequence::Sequence() = default;
Sequence::~Sequence() = default;

std::unique_ptr<Sequence> Engine::create() {
  auto s = std::make_unique<Sequence>();
  s->tokens.reserve(n_ctx());
  s->kv = device_->kv().create(n_ctx(), digest_spec(selection()));
  return s;
}

void Engine::check_fork(const Sequence& from, int64_t n_tokens) const {
  if (selector_->prompt_queries() > 0)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.selector` %s learns from the attention of prompts: its sessions cannot be "
         "forked",
         selector_->name());
  if (list_positions() || from.kv.unrotated)
    fail(
        RIFFLE_UNSUPPORTED,
        "`selection.positions` list: sessions whose keys have no fixed positions cannot be forked");
  check_reach(from, n_tokens);
}

std::unique_ptr<Sequence> Engine::fork(Sequence& from, int64_t n_tokens) {
  check_fork(from, n_tokens);
  drop_ahead(from);
  auto s = std::make_unique<Sequence>();
  s->tokens.reserve(n_ctx());
  s->tokens.assign(from.tokens.begin(), from.tokens.begin() + n_tokens);
  s->loaded_from = from.loaded_from;
  s->n_loaded = std::min(from.n_loaded, n_tokens);
  s->kv = device_->kv().fork(from.kv, n_tokens, n_ctx());
  take_kept_logits(*s);
  return s;
}

void Engine::destroy(Sequence& s) {
  std::erase(stepped_, &s);
  if (head_) head_->drop(s.draft);
  device_->kv().destroy(s.kv);
}

void Engine::check_reach(const Sequence& s, int64_t n_tokens) const {
  const int64_t reached = reach(s, n_tokens);
  if (reached < n_tokens)
    fail(RIFFLE_BAD_ARGUMENT,
         "n_tokens is %lld, but the session of %lld tokens has dropped the %s that the model's "
         "%s need there: the next shorter length that works is %lld",
         static_cast<long long>(n_tokens), static_cast<long long>(s.kv.n_tokens),
         shape_.state_bytes() > 0 ? "state" : "KV",
         shape_.state_bytes() > 0 ? "recurrent layers" : "sliding windows",
         static_cast<long long>(reached));
}

void Engine::truncate(Sequence& s, int64_t n_tokens) {
  check_reach(s, n_tokens);
  drop_ahead(s);
  if (n_tokens == s.kv.n_tokens) return;
  device_->kv().truncate(s.kv, n_tokens);
  device_->kv().clear_working_set(s.kv);
  s.in_file = std::min(s.in_file, n_tokens);
  s.n_loaded = std::min(s.n_loaded, n_tokens);
  s.working_sets.reset();
  s.tokens.resize(n_tokens);
  if (head_) head_->cut(s.draft, n_tokens);
  s.logits.clear();
  take_kept_logits(s);
}

// Takes the logits that were kept with the state after the last token, if they were.
void Engine::take_kept_logits(Sequence& s) {
  if (const auto& states = s.kv.states; !states.empty() && states.back().logits)
    s.logits.own = *states.back().logits;
}

bool Engine::has_logits(const Sequence& s, int64_t n_tokens) const {
  if (n_tokens == s.kv.n_tokens) return s.logits.any();
  return n_tokens > 0 && reach(s, n_tokens) == n_tokens &&
         std::any_of(s.kv.states.begin(), s.kv.states.end(), [&](const StateAt& state) {
           return state.n_tokens == n_tokens && state.logits;
         });
}

void Engine::set_selection(const Selection& selection) {
  std::unique_ptr<Selector> selector = selector_of(selection);
  check_selector(*selector, selection);
  selector_ = std::move(selector);
  ++program_;
  options_.options.selection = selection;
}

void Engine::set_working_set(int window) {
  working_set_ = window;
  ++program_;
}

bool Engine::drafts() const { return head_ && !selector_->keeps_steps(); }

int64_t Engine::guess(std::span<Sequence* const> sequences, std::span<DraftRequest> requests) {
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].state = &sequences[i]->draft;
    requests[i].held = sequences[i]->tokens;
  }
  const int64_t fed = drafts() ? head_->guess(requests) : 0;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  counts_.decode_seconds += seconds.count();
  for (Sequence* s : sequences) s->counts.decode_seconds += seconds.count();
  return fed;
}

void Engine::drop_draft(Sequence& s) {
  if (head_) head_->drop(s.draft);
}

int64_t Engine::pool_room(size_t n) const {
  return device_->kv().selection_slots(static_cast<int64_t>(n), row_slots(selection()));
}

void Engine::set_prefill_share(float share) {
  if (!options_.chooses_tiles())
    fail(RIFFLE_BAD_ARGUMENT,
         "`prefill_share` is set, but `prefill_selector` is not tiles: expected tiles");
  if (!(share >= 0 && share < 1))
    fail(RIFFLE_BAD_ARGUMENT, "`prefill_share` is %g, expected at least 0, less than 1",
         static_cast<double>(share));
  options_.options.prefill_share = share;
}

void Engine::set_row_report(ReportRow report, bool coverage) {
  report_ = std::move(report);
  coverage_ = report_ && coverage;
}

void Engine::check_tokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= model_.config.vocab_size)
      fail(RIFFLE_BAD_ARGUMENT, "tokens[%zu] is %d, expected 0 to %d", i, tokens[i],
           model_.config.vocab_size - 1);
}

// A sequence's digests have the kind that was in force when they were built.
void Engine::require_digests(Sequence& s) {
  const DigestSpec want = digest_spec(selection());
  if (!want.kept || s.kv.spec == want) return;
  // An unused mean does no harm; rebuilding for each change of stop mode would.
  if (s.kv.spec.kept && s.kv.spec.kind == want.kind && s.kv.spec.with_mean) return;
  device_->kv().change_digests(s.kv, want);
}

bool Engine::list_positions() const { return selector_->lists().has_value(); }

// Another source of attention ignores positions, so a context beyond the trained length needs no
// notice.
const char* Engine::notice() {
  const Selection& s = selection();
  const int64_t trained = model_.config.n_ctx;
  notice_.clear();
  const auto say = [&](const std::string& text) {
    notice_ += (notice_.empty() || text.empty() ? "" : "\n") + text;
  };
  if (model_.tokenizer) say(model_.tokenizer->note());
  say(options_.context_note);
  say(options_.experts_note);
  say(selector_note(options_, s));
  if (n_ctx() > trained && !options_.attention)
    say(selector_->context_note(n_ctx(), trained)
            .value_or(
                format("the context holds %lld tokens, but the model was trained with %lld: "
                       "tokens beyond that are likely to be misread%s",
                       static_cast<long long>(n_ctx()), static_cast<long long>(trained),
                       rotates_whole_heads(model_.config) ? selectors().advice().positions : "")));
  if (const auto unused = selectors().advice().unused) say(unused(s, *selector_));
  say(device_->notice());
  return notice_.c_str();
}

// All heads of a layer share the same blocks, so one head is enough.
int64_t Engine::freed_by_cut(const Sequence& s, int64_t n_tokens) const {
  uint64_t freed = 0;
  for (int layer = 0; layer < shape_.n_layers(); ++layer) {
    if (shape_.heads(layer) == 0) continue;
    const std::vector<std::byte*>& blocks = device_->kv().host().head(s.kv, layer, 0).blocks;
    uint64_t of_head = 0;
    for (size_t b = shape_.in_blocks(n_tokens); b < blocks.size(); ++b)
      of_head += blocks[b] && !device_->kv().host().shared(blocks[b]);
    freed += of_head * shape_.heads(layer) * shape_.block_bytes(layer);
  }
  for (const StateAt& state : s.kv.states)
    if (state.block && state.n_tokens > n_tokens && device_->kv().host().held_once(state.block))
      freed += shape_.state_bytes();
  return static_cast<int64_t>(freed);
}

int64_t Engine::own_bytes(int64_t n_tokens, int64_t shared, std::span<const int64_t> marks) const {
  const int64_t block_size = shape_.block_size(), from = shared / block_size;
  Marks all;
  for (const int64_t mark : marks) all.add(mark);
  uint64_t bytes = shape_.bytes(n_tokens, all, from);
  // The fork copies a partly shared block, even one that will pass out of a window.
  for (int layer = 0; shared % block_size != 0 && layer < shape_.n_layers(); ++layer)
    if (!shape_.keeps(layer, from, n_tokens, all))
      bytes += shape_.heads(layer) * shape_.block_bytes(layer);
  if (shape_.state_bytes() == 0) return static_cast<int64_t>(bytes);
  // The states at marks, at the end and on the grid, and the one that is being written.
  const auto turns = std::count_if(marks.begin(), marks.end(),
                                   [&](int64_t m) { return m > shared && m < n_tokens; });
  const auto grid = static_cast<int64_t>(Checkpoints::grid(shared, n_tokens).size());
  bytes += (std::min<int64_t>(turns + 1 + grid,
                              std::min(shape_.most_states(), Checkpoints::kOfRequest)) +
            1) *
           shape_.state_bytes();
  return static_cast<int64_t>(bytes);
}

int64_t Engine::rope_positions(int64_t n_tokens) const {
  const std::optional<TokenLists> lists = selector_->lists();
  if (!lists || n_tokens <= lists->shortest()) return n_tokens;
  const int64_t local = lists->last;
  const int64_t votes = local + std::min<int64_t>(options_.options.prefill_chunk, local);
  return std::max(votes, selection().dense_layers > 0 || coverage_
                             ? n_tokens
                             : std::min(n_tokens, lists->shortest() + lists->reused));
}

// Makes the selector's data of a sequence when it is first needed, from the keys held by then.
// Brings these keys to the form that the selection needs.
void Engine::require_state(Sequence& s) {
  if (s.kv.unrotated != list_positions() && s.kv.n_tokens > 0) {
    device_->rope_table(s.kv.n_tokens, ropes_);
    s.in_file = 0;
    device_->change_positions(s.kv, list_positions());
  }
  s.kv.unrotated = list_positions();
  device_->add_index(*selector_, s.kv);
}

std::unique_ptr<Selector> Engine::selector_of(const Selection& wanted) const {
  Selection settings = options_.without_auto(wanted);
  if (settings.selector == SelectorKind::DENSE) return make_selector(settings);
  settings.selector = wanted.selector;  // make_selector reads short sessions whole for AUTO
  return make_selector(settings, options_.everything_below);
}

void Engine::check_selector(const Selector& selector, const Selection& wanted) const {
  if (selector.lists() && model_.config.latent)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model's multi-head latent attention");
  int windowed = 0;  // the first layer with a window
  while (windowed < shape_.n_layers() && window(windowed) == 0) ++windowed;
  if (selector.lists() && windowed < shape_.n_layers())
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model's sliding window: %d tokens in "
         "layer %d, and `n_ctx` is %lld",
         window(windowed), windowed, static_cast<long long>(n_ctx()));
  // Keys are held before RoPE, and all layers are rotated by the first table.
  if (selector.lists() && ropes_.size() > 1)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model, whose layers rotate "
         "differently");
  if (selector.lists() && (ropes_[0].scale != 1 || ropes_[0].factor != 1))
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with the attention factor of this model (RoPE "
         "scaling %s)",
         rope_scaling_text(model_.config.ropes[0].scaling).c_str());
  if (selector.lists() && !rotates_whole_heads(model_.config))
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model, which rotates %d of the %d "
         "dimensions of a head",
         model_.config.ropes[0].rotated, model_.config.rope_head(model_.config.ropes[0]));
  if (selector.lists() && model_.config.norm_after_rope)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model, which normalises keys after "
         "RoPE");
  if (selector.lists() && model_.config.uneven_heads())
    fail(RIFFLE_UNSUPPORTED,
         "`selection.positions` list does not work with this model, whose layers differ in the "
         "number of query heads");
  check_ahead(options_.options, selector);
  check_tiles(options_.options, selector);
  device_->check_selector(selector, wanted);
}

uint64_t Engine::index_bytes(const Sequence& s) const {
  uint64_t sum = s.kv.selection ? s.kv.selection->bytes() : 0;
  for (const HeadKv& h : s.kv.heads)
    sum += h.digests.size() * sizeof(uint16_t) + h.bound_factor.size() * sizeof(float);
  return sum;
}

// Returns the counts that add up, of the context or of a sequence.
Stats Engine::counted(const Counts& c) const {
  Stats out{};
  out.prefill_tokens = c.prefill_tokens;
  out.decode_tokens = c.decode_tokens;
  out.decode_steps = c.decode_steps;
  out.lookup_proposed = c.lookup_proposed;
  out.lookup_accepted = c.lookup_accepted;
  out.prefill_seconds = c.prefill_seconds;
  out.prefill_tiles_seen = c.prefill_tiles_seen;
  out.prefill_tiles_read = c.prefill_tiles_read;
  out.decode_seconds = c.decode_seconds;
  out.kv_blocks_total = c.kv_blocks_total;
  out.kv_blocks_read = c.kv_blocks_read;
  out.kv_tokens_total = c.kv_tokens_total;
  out.kv_tokens_read = c.kv_tokens_read;
  out.kv_bytes_read = c.kv_bytes_read;
  out.index_bytes_read = c.index_bytes_read;
  out.selections = c.selections;
  out.cached_selections = c.cached_selections;
  return out;
}

Stats Engine::stats() const {
  Stats out = counted(counts_);
  const PoolCounters& r = device_->kv().counters;
  out.pool_lookups = r.lookups - counted_.lookups;
  out.pool_hits = r.hits - counted_.hits;
  out.loaded_bytes = r.loaded_bytes - counted_.loaded_bytes;
  out.flushed_bytes = r.flushed_bytes - counted_.flushed_bytes;
  out.evictions = r.evictions - counted_.evictions;
  out.host_kv_bytes = device_->kv().host().host_bytes();
  out.pool_slots = device_->kv().slots();
  device_->add_stats(out);
  out.host_syncs -= counted_syncs_;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) out.peak_rss_bytes = uint64_t(usage.ru_maxrss) * 1024;
  return out;
}

Stats Engine::stats(const Sequence& s) const {
  Stats out = counted(s.counts);
  out.index_bytes = index_bytes(s);
  out.pool_lookups = s.counts.pool_lookups;
  out.pool_hits = s.counts.pool_hits;
  out.loaded_bytes = s.counts.loaded_bytes;
  for (int layer = 0; layer < shape_.n_layers(); ++layer)
    out.host_kv_bytes +=
        device_->kv().host().blocks_held(s.kv, layer, 0, shape_.in_blocks(s.kv.n_tokens)) *
        shape_.block_bytes(layer);
  out.host_kv_bytes += std::count_if(s.kv.states.begin(), s.kv.states.end(),
                                     [](const StateAt& state) { return state.block != nullptr; }) *
                       shape_.state_bytes();
  out.pool_slots = device_->kv().slots();
  return out;
}

void Engine::reset_stats() {
  counts_ = {};
  counted_ = device_->kv().counters;
  Stats device{};
  device_->add_stats(device);
  counted_syncs_ = device.host_syncs;
}

}  // namespace riffle
