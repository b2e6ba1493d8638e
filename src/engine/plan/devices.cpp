#include "engine/plan/devices.h"

#include <algorithm>

#include "backend/cuda/cuda.h"
#include "engine/plan/saturating.h"
#include "util/error.h"

namespace riffle {

// Large enough to amortise unpacking weights for the matrix units, small enough for a chunk's
// activations to stay in the second-level cache of a core.
static constexpr int kPrefillChunk = 512;
// On a GPU: large enough that a product's weights are read seldom, small enough that its
// activations are a few hundred MB.
static constexpr int kCudaPrefillChunk = 2048;

// Tells whether a GPU can run this model with this selector; note: its name, or the reason against
// it.
static bool gpu_usable(const Config& config, const ResolvedOptions& r, std::string& note) {
  const auto selector = make_selector(r.options.selection);
  const char* const host_only = selector->host_only();
  // Before a GPU is looked for: no GPU would do.
  if (r.options.device == DeviceKind::CUDA && host_only)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.selector` is %s, which %s: device is cuda, expected cpu or emu",
         selector->name(), host_only);
  if (!cuda_usable(note)) return false;
  if (host_only) {
    note = format("selector %s %s: it needs device cpu or emu", selector->name(), host_only);
    return false;
  }
  return cuda_shape_supported(config, r.layout, note);
}

// A pool was asked for with device AUTO, and no GPU can be used. A budget of GPU memory means that
// the user expects a GPU: the CPU would be many times slower, and an emulated pool slower still.
[[noreturn]] static void refuse_pool(const ResolvedOptions& r) {
  fail(RIFFLE_UNSUPPORTED,
       "`%s` is given, but no GPU can be used (%s): leave it out to run on the CPU, or give "
       "`device` emu to emulate a GPU's pool",
       r.options.gpu_mem ? "gpu_mem" : "slots",
       r.device_note.empty() ? "this riffle was built without the CUDA toolkit"
                             : r.device_note.c_str());
}

void require_alike(const KvShape& shape, const char* device) {
  if (const std::string uneven = shape.uneven(); !uneven.empty())
    fail(RIFFLE_UNSUPPORTED, "device %s: %s, expected layers whose KV is alike", device,
         uneven.c_str());
}

void choose_device(const Config& config, ResolvedOptions& r) {
  ContextOptions& o = r.options;
  if (o.device == DeviceKind::AUTO || o.device == DeviceKind::CUDA) {
    const bool usable = gpu_usable(config, r, r.device_note);
    r.no_driver = !usable && cuda_driver_missing();
    if (o.device == DeviceKind::CUDA && !usable)
      fail(RIFFLE_UNSUPPORTED, "device cuda: %s",
           r.device_note.empty() ? "this riffle was built without the CUDA toolkit"
                                 : r.device_note.c_str());
    if (!usable && (o.slots || o.gpu_mem)) refuse_pool(r);
    o.device = usable ? DeviceKind::CUDA : DeviceKind::CPU;
  }
  r.device_memory = o.device == DeviceKind::CUDA;
  r.has_pool = o.device != DeviceKind::CPU;
  if (o.prefill_chunk == 0) o.prefill_chunk = r.device_memory ? kCudaPrefillChunk : kPrefillChunk;
  if (r.device_memory && o.residency == ResidencyKind::DEVICE &&
      (o.evict != EvictRule::LRU || o.pool_per_layer || !o.pin))
    fail(RIFFLE_UNSUPPORTED,
         "`residency` device has one pool for all layers, evicts the least recently used and needs "
         "pinned memory");
  if (!r.has_pool && (o.slots || o.gpu_mem))
    fail(RIFFLE_BAD_ARGUMENT,
         "device cpu has no slot pool: `slots` and `gpu_mem` need device cuda or emu");
  if (!r.device_memory && (o.residency != ResidencyKind::AUTO || !o.pin))
    fail(RIFFLE_BAD_ARGUMENT,
         "device %s has no GPU memory to manage: `residency` and `pin` need device cuda%s%s",
         device_name(r), r.device_note.empty() ? "" : ", but ", r.device_note.c_str());
  require_alike(kv_shape(config, r), device_name(r));
}

const char* device_name(const ResolvedOptions& r) {
  return r.options.device == DeviceKind::CUDA  ? "cuda"
         : r.options.device == DeviceKind::EMU ? "emu"
                                               : "cpu";
}

static DeviceNeeds cuda_needs(const Model& model, const ResolvedOptions& r) {
  const ContextOptions& o = r.options;
  const Config& c = model.config;
  DeviceNeeds needs = plan_cuda(model, r);
  // The host gives every row of a layer one iteration's slots; the device needs none to go on. But
  // where the system does not pin memory, the host has to take over, and a pool that riffle chooses
  // is large enough for that.
  if (why_host_residency(o) || (o.residency == ResidencyKind::AUTO && o.slots == 0))
    needs.min_slots =
        (row_slots(o.selection) + 1) * c.n_kv_heads * (o.pool_per_layer ? c.n_layers : 1);
  return needs;
}

static DeviceNeeds cpu_needs(const Model& model, const ResolvedOptions& r) {
  const ContextOptions& o = r.options;
  const Config& c = model.config;
  const KvShape shape = kv_shape(c, r);
  const int64_t blocks = shape.in_blocks(o.n_ctx), heads = shape.heads();
  const int chosen = c.n_layers - shape.windowed_layers();  // layers that blocks are chosen from
  uint64_t q_width = 0, kv_width = 0;                       // widths of the widest layers
  for (int layer = 0; layer < c.n_layers; ++layer) {
    q_width = std::max<uint64_t>(q_width, c.q_width(layer));
    kv_width = std::max<uint64_t>(kv_width, c.kv_width(layer));
  }
  const uint64_t chunk = std::min(o.prefill_chunk, o.n_ctx), sessions = o.n_sessions;
  DeviceNeeds needs;
  needs.weights = model.weight_bytes;
  needs.activations =
      sizeof(float) *
      (uint64_t(o.n_ctx) * c.dim +
       chunk * (c.dim + 2 * q_width + 2 * kv_width + 2 * uint64_t(c.ffn_values()) +
                2 * uint64_t(c.experts.n_used) * c.dim) +
       c.ropes.size() * o.n_ctx * c.head_dim + 2 * (1 + uint64_t(o.lookup)) * c.vocab_size);
  for (int layer = 0; layer < c.n_layers; ++layer)
    if (shape.selects(layer))
      needs.digests = sum(
          {needs.digests, product({sessions, uint64_t(shape.heads(layer)), uint64_t(blocks),
                                   digest_spec(o.selection).bytes(shape.layer(layer).head_dim)})});
  StateShape state = state_shape(c, r);
  state.n_layers = chosen;
  needs.selector_state = make_selector(r.selection())->state_bytes(state, o.n_ctx);
  if (!r.has_pool) {
    for (int layer = 0; layer < c.n_layers; ++layer)
      if (shape.window(layer) > 0)
        needs.prefill_kv = std::max<uint64_t>(needs.prefill_kv,
                                              std::min(blocks, shape.prompt_blocks(layer, chunk)) *
                                                  shape.heads(layer) * shape.block_bytes(layer));
    return needs;
  }
  needs.per_slot = shape.largest_block();
  needs.prefill_kv = shape.largest_layer(o.n_ctx);
  needs.min_slots = row_slots(o.selection) * (o.pool_per_layer ? c.n_layers : 1) + heads;
  if (grants_slots(o)) return needs;
  // Counts as on a GPU: a slot has a word and a place among the victims, and each session has two
  // page tables and its newest blocks.
  needs.per_slot += sizeof(uint64_t) + sizeof(int32_t);
  needs.digests = sum(
      {needs.digests, product({sessions, uint64_t(heads),
                               2 * sizeof(int32_t) * uint64_t(blocks) + shape.largest_block()})});
  return needs;
}

DeviceNeeds device_needs(const Model& model, const ResolvedOptions& r) {
  return r.device_memory ? cuda_needs(model, r) : cpu_needs(model, r);
}

std::unique_ptr<Device> make_device(const Model& model, const ResolvedOptions& r,
                                    ThreadPool* threads) {
  if (r.device_memory) return make_cuda_device(model, r, threads);
  return make_cpu_device(model, r, threads);
}

}  // namespace riffle
