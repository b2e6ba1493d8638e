// Sessions to files and back (kv/file). Data that follows from keys and values is rebuilt; other
// data (a selector's tables of past attention) is in the file.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/engine.h"
#include "kernels/common/kv_q8.h"
#include "kv/file/session_writer.h"
#include "model/fingerprint.h"
#include "model/key_centre.h"
#include "model/recurrence.h"
#include "riffle.h"
#include "util/checked.h"
#include "util/checksum.h"
#include "util/error.h"

namespace riffle {

const SessionOrigin& Engine::origin() {
  if (origin_) return *origin_;
  const Config& c = model_.config;
  SessionOrigin o;
  o.model = c.name;
  o.architecture = c.architecture;
  for (int i = 0; i < shape_.n_layers(); ++i) {
    LayerShape layer = shape_.layer(i);
    if (layer.keeps == LayerKeeps::WINDOW_KV) layer.keeps = LayerKeeps::KV;
    layer.window = 0;
    o.layers.push_back(layer);
  }
  o.block_size = options_.layout.block_size;
  o.vocab_size = c.vocab_size;
  o.type = options_.layout.type;
  o.weights = weights_fingerprint(model_);
  o.tokenizer = tokenizer_fingerprint(model_);
  Checksum rotation;
  for (const RopeFrequencies& r : ropes_) {
    rotation.add(r.frequency.data(), r.frequency.size() * sizeof(float));
    for (const float value : {r.scale, r.factor, r.temperature}) rotation.add_value(value);
    rotation.add_value(r.temperature_ctx);
  }
  ropes_hash_ = rotation.value();
  // 8-bit keys are stored without their centre, which follows from the bias and the frequencies.
  // With the biases in the hash, sessions whose keys were saved whole are refused.
  for (int i = 0; o.type == KvType::Q8 && i < c.n_layers; ++i) {
    const Tensor& bias = model_.weights.layers[i].bk;
    if (has_key_centre(model_, i)) rotation.add(bias.data, bias.cols * sizeof(float));
  }
  o.rotation = rotation.value();
  return origin_.emplace(std::move(o));
}

uint64_t Engine::fingerprint() {
  const SessionOrigin& o = origin();
  Checksum sum;
  for (const uint64_t value : {o.weights, o.tokenizer, o.rotation}) sum.add_value(value);
  const auto layers = static_cast<int32_t>(o.layers.size());
  const LayerShape& first = o.layers[shape_.first_with_blocks()];
  for (const int32_t value : {layers, first.n_kv_heads, first.head_dim, o.vocab_size, o.block_size})
    sum.add_value(value);
  if (!shape_.uneven().empty() || o.has_states())
    for (const LayerShape& l : o.layers) {
      for (const int32_t value : {static_cast<int>(l.keeps), l.n_kv_heads, l.head_dim, l.source})
        sum.add_value(value);
      if (l.state_bytes > 0) sum.add_value(l.state_bytes);
    }
  sum.add_value(o.type);
  // Hashes everything that the last bits of keys and values depend on: the kernels, which a new
  // version may change, the instruction set or the GPU, and the chunks of a prompt if they change
  // bits. The instruction sets that isa AUTO chose by timing are left out: each start may choose
  // others, and keys and values from other kernels are no worse.
  const std::string bits = std::string(RIFFLE_VERSION) + " " + device_->arithmetic();
  sum.add(bits.data(), bits.size());
  sum.add_value(device_->reuse_unit());
  if (options_.chooses_tiles()) sum.add_value(options_.options.prefill_share);
  return sum.value();
}

static void check_data(std::string_view data) {
  if (data.size() > kMaxSessionData)
    fail(RIFFLE_BAD_ARGUMENT, "`data`: found %zu bytes, expected at most %llu", data.size(),
         static_cast<unsigned long long>(kMaxSessionData));
}

// Also stops after riffle_abort.
Engine::Progress Engine::stoppable(const Progress& progress) {
  return [&](double done, double total) {
    return (!progress || progress(done, total)) && !take_abort();
  };
}

void Engine::save(Sequence& s, const std::string& path, std::string_view data,
                  const Progress& progress, uint64_t* save_id) {
  if (run_ && run_->sequence == &s)
    fail(RIFFLE_BAD_ARGUMENT, "a prompt is being read into the session");
  check_data(data);
  drop_ahead(s);
  device_->kv().settle(s.kv);
  SessionToSave save;
  save.origin = origin();
  save.kv = &s.kv;
  save.marks = s.kv.marks;
  save.tokens = s.tokens;
  if (s.logits.any()) save.logits = logits(s);
  if (s.kv.selection) {
    s.kv.selection->settle();
    save.state_kind = s.kv.selection->saved_kind();
    if (!save.state_kind.empty()) save.state = s.kv.selection->save();
  }
  save.data = data;
  s.file =
      save_session(path, save, s.file.get(), s.in_file, *threads_, stoppable(progress), save_id);
  s.in_file = s.file ? s.kv.n_tokens : 0;
}

void Engine::save_beginning(Sequence& s, int64_t n_tokens, const std::string& path,
                            std::string_view data, const Progress& progress, uint64_t* save_id) {
  check_fork(s, n_tokens);
  check_data(data);
  drop_ahead(s);
  device_->kv().settle(s.kv);
  SessionToSave save;
  save.origin = origin();
  save.kv = &s.kv;
  save.marks = s.kv.marks.of_fork(n_tokens);
  save.tokens = std::span(s.tokens).first(n_tokens);
  save.data = data;
  save_session(path, save, nullptr, 0, *threads_, stoppable(progress), save_id);
}

int64_t Engine::reach(const SessionFile& file, int64_t n_tokens) const {
  const SessionContent& c = file.content();
  std::vector<int64_t> states;
  for (const StateRun& state : c.states) states.push_back(state.n_tokens);
  const auto holds = [&](int layer, int64_t block) {
    return shape_.keeps(layer, block, c.n_tokens(), c.marks) &&
           std::any_of(c.extents.begin(), c.extents.end(), [&](const KvExtent& e) {
             return e.layer == layer && e.first <= block && block < e.first + e.n;
           });
  };
  return shape_.reach(n_tokens, holds, states);
}

// Throws if the file does not fit this context, and names the difference.
void Engine::check_origin(const SessionFile& file) {
  const SessionOrigin &has = file.content().origin, &want = origin();
  const auto differs = [&](const char* field, const std::string& found,
                           const std::string& expected) {
    unsupported(file.path(), field, found, expected);
  };
  const auto shape = [](const SessionOrigin& o) {
    const std::string uneven = o.shape().uneven();
    const LayerShape& first = o.layers[o.shape().first_with_blocks()];
    const std::string states =
        o.has_states() ? format(" and states of %zu bytes", o.shape().state_bytes()) : "";
    const char* const alone = first.keeps == LayerKeeps::KEYS ? " without values" : "";
    return format("%s, %zu layers, %d KV heads of %d%s%s%s, a vocabulary of %d",
                  o.architecture.c_str(), o.layers.size(), first.n_kv_heads, first.head_dim, alone,
                  states.c_str(), uneven.empty() ? "" : (" (" + uneven + ")").c_str(),
                  o.vocab_size);
  };
  const auto named = [&](const SessionOrigin& o) { return o.model + " (" + shape(o) + ")"; };
  const auto hash = [](const std::string& name, uint64_t value) {
    return format("%s (%016llx)", name.c_str(), static_cast<unsigned long long>(value));
  };
  if (shape(has) != shape(want) || has.layers != want.layers)
    differs("model", named(has), named(want));
  if (has.weights != want.weights)
    differs("weights", hash(has.model, has.weights), hash(want.model, want.weights));
  if (has.tokenizer != want.tokenizer)
    differs("tokenizer", hash(has.model, has.tokenizer), hash(want.model, want.tokenizer));
  if (has.type != want.type || has.block_size != want.block_size) {
    const auto kv = [](const SessionOrigin& o) {
      const char* const names[] = {"f16", "f32", "q8"};
      return format("%s in blocks of %d tokens", names[static_cast<int>(o.type)], o.block_size);
    };
    fail(RIFFLE_UNSUPPORTED, "%s: KV: found %s, expected %s (`kv_type`, `block_size`)",
         file.path().c_str(), kv(has).c_str(), kv(want).c_str());
  }
  if (has.rotation != want.rotation && has.rotation == ropes_hash_)
    differs("8-bit keys", "keys with the bias of the key projection, of an older riffle",
            "keys without it; read the text again");
  if (has.rotation != want.rotation)
    differs("positions", "other RoPE frequencies", "those of this model and context length");
  if (file.content().chose_tiles && !options_.chooses_tiles())
    fail(RIFFLE_UNSUPPORTED,
         "%s: prompts: found KV of prompts that read chosen key tiles (`prefill_selector` tiles), "
         "expected KV of prompts that read all keys; set `prefill_selector` to tiles, or read the "
         "text again",
         file.path().c_str());
  const int64_t n = file.content().n_tokens();
  if (n > n_ctx())
    fail(RIFFLE_CONTEXT_FULL, "%s: the session has %lld tokens, but the context holds %lld",
         file.path().c_str(), static_cast<long long>(n), static_cast<long long>(n_ctx()));
}

// Calls missing(first, last) for each run of a layer's blocks that is not in the file.
template <class Missing>
static void each_missing(const SessionContent& c, int layer, int64_t n_blocks, Missing missing) {
  int64_t b = 0;
  for (const KvExtent& e : c.extents) {
    if (e.layer != layer) continue;
    if (b < e.first) missing(b, std::min(e.first, n_blocks));
    b = std::max(b, e.first + e.n);
  }
  if (b < n_blocks) missing(b, n_blocks);
}

// Throws unless the file has all blocks that the next token sees.
static void check_blocks(const SessionFile& file, const KvShape& shape) {
  const SessionContent& c = file.content();
  const int64_t n_blocks = shape.in_blocks(c.n_tokens());
  for (int layer = 0; layer < shape.n_layers(); ++layer)
    each_missing(c, layer, n_blocks, [&](int64_t first, int64_t last) {
      if (const int64_t b = std::max(first, shape.first_needed(layer, c.n_tokens()));
          b < last && shape.heads(layer) > 0)
        bad_session(file.path(), format("block %lld of layer %d", static_cast<long long>(b), layer),
                    "none", "one");
    });
}

static constexpr int64_t kPiece = 64;  // blocks that read_head reads at once through its scratch

// Reads a head's blocks of an extent, which lie at offset, and returns their checksum. Blocks that
// follow each other in memory are read in place, others through the scratch.
template <class Blocks>
static uint64_t read_head(const SessionFile& file, const KvExtent& e, uint64_t offset,
                          const Blocks& blocks, int64_t block_bytes, std::byte* scratch) {
  const auto place = [&](int64_t i) { return i < e.n ? blocks[e.first + i] : nullptr; };
  Checksum sum;
  for (int64_t first = 0, n = 0; first < e.stride; first += n) {
    int64_t run = 0;
    while (run < e.stride - first && place(first + run) &&
           place(first + run) == place(first) + run * block_bytes)
      ++run;
    n = run > 0 ? run : std::min(kPiece, e.stride - first);
    std::byte* const to = run > 0 ? place(first) : scratch;
    file.read(offset + first * block_bytes, to, n * block_bytes);
    sum.add(to, n * block_bytes);
    for (int64_t i = 0; run == 0 && i < n; ++i)
      if (place(first + i)) std::memcpy(place(first + i), scratch + i * block_bytes, block_bytes);
  }
  return sum.value();
}

// Takes the blocks from the file and checks them.
void Engine::load_blocks(const std::shared_ptr<const SessionFile>& shared, SequenceKv& kv,
                         const Progress& progress) {
  const SessionFile& file = *shared;
  const SessionContent& c = file.content();
  const bool maps = device_->kv().maps_files();
  const std::byte* const map = maps && !c.extents.empty() ? file.mapped() : nullptr;
  if (!maps) {
    device_->kv().reserve(kv, c.n_tokens(), c.marks);
    for (int layer = 0; layer < shape_.n_layers(); ++layer)
      each_missing(c, layer, shape_.in_blocks(c.n_tokens()), [&](int64_t first, int64_t last) {
        device_->kv().forget_blocks(kv, layer, first, last);
      });
  }
  struct Task {
    const KvExtent* extent;
    int head;
  };
  std::vector<Task> tasks;
  for (const KvExtent& e : c.extents)
    for (int head = 0; head < shape_.heads(e.layer); ++head) tasks.push_back({&e, head});
  const double total = static_cast<double>(c.kv_bytes());
  double done = 0;
  std::vector<Buffer> scratch(maps ? 0 : threads_->size());
  for (Buffer& b : scratch) b.reserve(kPiece * shape_.largest_block());
  const auto take = [&](const Task& task, int thread) {
    const auto [extent, head] = task;
    const KvExtent& e = *extent;
    const size_t bytes = shape_.block_bytes(e.layer);
    const uint64_t offset = e.offset + uint64_t(head) * e.stride * bytes;
    const auto& blocks = kv.heads[shape_.first_head(e.layer) + head].blocks;
    const auto block_bytes = static_cast<int64_t>(bytes);
    const uint64_t sum =
        maps ? checksum(map + offset, e.stride * bytes)
             : read_head(file, e, offset, blocks, block_bytes, scratch[thread].as<std::byte>());
    if (sum == e.checksums[head]) return;
    bad_session(file.path(),
                format("layer %d, KV head %d, blocks from %lld on", e.layer, head,
                       static_cast<long long>(e.first)),
                "bytes that do not match their checksum", "an undamaged file");
  };
  const size_t batch = 4 * size_t(threads_->size());
  for (size_t first = 0; first < tasks.size(); first += batch) {
    if (take_abort() || (progress && !progress(done, total)))
      fail(RIFFLE_ABORTED, "loading a session was stopped");
    const size_t n = std::min(batch, tasks.size() - first);
    threads_->parallel_for(static_cast<int64_t>(n),
                           [&](int64_t i, int thread) { take(tasks[first + i], thread); });
    for (size_t i = first; i < first + n; ++i)
      done += static_cast<double>(tasks[i].extent->n * shape_.block_bytes(tasks[i].extent->layer));
  }
  if (!maps) return;
  std::vector<MappedBlocks> blocks;
  for (const KvExtent& e : c.extents)
    blocks.push_back({e.layer, e.first, e.n, e.stride, map + e.offset});
  device_->kv().adopt(kv, c.n_tokens(), c.marks, blocks, shared);
}

std::unique_ptr<Sequence> Engine::load(const std::shared_ptr<const SessionFile>& file,
                                       const Progress& progress) {
  check_origin(*file);
  check_blocks(*file, shape_);
  const SessionContent& c = file->content();
  auto s = create();
  try {
    s->tokens.assign(c.tokens.begin(), c.tokens.end());
    load_blocks(file, s->kv, progress);
    load_states(*file, s->kv);
    device_->kv().enter(s->kv, c.n_tokens(), c.marks);
    s->kv.unrotated = c.unrotated;
    s->kv.chose_tiles = c.chose_tiles;
    if (c.logits.bytes > 0) {
      s->logits.own.resize(model_.config.vocab_size);
      std::memcpy(s->logits.own.data(), file->read(c.logits).data(), c.logits.bytes);
    }
    if (!c.state_kind.empty()) load_state(*file, *s);
  } catch (...) {
    destroy(*s);
    throw;
  }
  s->file = file;
  s->in_file = c.n_tokens();
  s->loaded_from = file->path();
  s->n_loaded = c.n_tokens();
  return s;
}

// Takes those of the file's states that the sequence keeps, each with its logits.
void Engine::load_states(const SessionFile& file, SequenceKv& kv) {
  const SessionContent& c = file.content();
  std::vector<StateRun> runs = c.states;
  Checkpoints::choose(runs, c.n_tokens(), shape_.most_states());
  std::erase_if(runs, [](const StateRun& run) { return !run.keep; });
  device_->kv().reserve_states(kv, std::vector<Checkpoint>(runs.begin(), runs.end()));
  for (size_t i = 0; i < runs.size(); ++i) {
    StateAt& state = kv.next_states[i];
    std::memcpy(state.block, file.read(runs[i].state).data(), shape_.state_bytes());
    if (runs[i].logits.bytes == 0) continue;
    std::vector<float> logits(model_.config.vocab_size);
    std::memcpy(logits.data(), file.read(runs[i].logits).data(), runs[i].logits.bytes);
    state.logits = std::make_shared<const std::vector<float>>(std::move(logits));
  }
}

// Checks one token's key or value.
static bool is_finite(const BlockLayout& layout, const std::byte* row) {
  const auto all = [&](const auto* from, int64_t n, auto finite) {
    return std::all_of(from, from + n, finite);
  };
  const int d = layout.head_dim;
  switch (layout.type) {
    case KvType::F32:
      return all(reinterpret_cast<const float*>(row), d, [](float x) { return std::isfinite(x); });
    case KvType::F16:
      return all(reinterpret_cast<const uint16_t*>(row), d,
                 [](uint16_t x) { return (x & 0x7c00) != 0x7c00; });
    case KvType::Q8:  // a scale begins with the five bits of f16's exponent
      return all(reinterpret_cast<const uint8_t*>(row) + d, (d + kQ8Values - 1) / kQ8Values,
                 [](uint8_t scale) { return scale < 0xf8; });
  }
  return true;
}

void Engine::check_loaded(const Sequence& s) {
  const auto n_heads = static_cast<int64_t>(s.kv.heads.size());
  std::vector<int64_t> bad(n_heads, -1);  // the first such token of each head
  // Loaded blocks lie unchanged in the host store.
  threads_->parallel_for(n_heads, [&](int64_t head, int) {
    const BlockLayout layout = shape_.layout(shape_.layer_of(head));
    for (int64_t t = 0; t < s.n_loaded && bad[head] < 0; ++t) {
      const std::byte* block = s.kv.heads[head].blocks[t / layout.block_size];
      if (!block) continue;
      const std::byte* key = block + t % layout.block_size * layout.row_bytes();
      if (!is_finite(layout, key) || !is_finite(layout, key + layout.value_offset())) bad[head] = t;
    }
  });
  const char* const expected = "finite numbers: the text must be read again";
  for (int64_t head = 0; head < n_heads; ++head)
    if (bad[head] >= 0)
      bad_session(s.loaded_from,
                  format("layer %d, KV head %lld, token %lld", shape_.layer_of(head),
                         static_cast<long long>(head - shape_.first_head(shape_.layer_of(head))),
                         static_cast<long long>(bad[head])),
                  "a key or value that is not a finite number", expected);
  for (const StateAt& state : s.kv.states) {
    if (state.n_tokens > s.n_loaded) break;
    for (int layer = 0; layer < shape_.n_layers(); ++layer) {
      const auto* values = reinterpret_cast<const float*>(state.block + shape_.state_at(layer));
      const int64_t n = model_.config.recurs(layer) ? recurrent_state(model_.config) : 0;
      if (!std::all_of(values, values + n, [](float x) { return std::isfinite(x); }))
        bad_session(s.loaded_from,
                    format("state of layer %d after %lld tokens", layer,
                           static_cast<long long>(state.n_tokens)),
                    "a value that is not a finite number", expected);
    }
  }
  // If no step or prompt has run since, the logits are the file's.
  if (s.n_loaded > 0 && s.n_loaded == s.kv.n_tokens)
    bad_session(s.loaded_from, "logits", "some that are not finite numbers", expected);
}

// Loads the selector's state if the selection in force can use it.
void Engine::load_state(const SessionFile& file, Sequence& s) {
  require_state(s);
  if (!s.kv.selection || s.kv.selection->saved_kind() != file.content().state_kind) return;
  if (!s.kv.selection->load(file.read(file.content().state), s.kv.n_tokens))
    bad_session(file.path(), "selector's state", "numbers out of range",
                "a state of " + file.content().state_kind);
}

}  // namespace riffle
