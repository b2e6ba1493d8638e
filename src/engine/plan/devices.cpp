#include "engine/plan/devices.h"

#include <algorithm>

#include "backend/cpu/cpu_plan.h"
#include "backend/cuda/cuda.h"
#include "util/error.h"

namespace riffle {

namespace {

// Large enough to amortise unpacking weights for the matrix units, small enough for a chunk's
// activations to stay in the second-level cache of a core.
constexpr int kPrefillChunk = 512;
// On a GPU: large enough that the weights of a matrix product are read rarely, small enough that
// its activations take only a few hundred MB.
constexpr int kCudaPrefillChunk = 2048;

struct DeviceEntry {
  DeviceKind kind;
  const char* name;
  bool has_pool, device_memory;  // BackendOptions
  int prefill_chunk;
  DeviceNeeds (*plan)(const Model& model, const BackendOptions& options);
  std::unique_ptr<Device> (*make)(const Model& model, const BackendOptions& options,
                                  ThreadPool* threads);
};

constexpr DeviceEntry kDevices[] = {
    {DeviceKind::CPU, "cpu", false, false, kPrefillChunk, plan_cpu, make_cpu_device},
    {DeviceKind::EMU, "emu", true, false, kPrefillChunk, plan_cpu, make_cpu_device},
    {DeviceKind::CUDA, "cuda", true, true, kCudaPrefillChunk, plan_cuda, make_cuda_device},
};

const DeviceEntry& entry_of(DeviceKind kind) {
  return *std::find_if(std::begin(kDevices), std::end(kDevices),
                       [&](const DeviceEntry& d) { return d.kind == kind; });
}

}  // namespace

// Tells whether a GPU can run this model with this selector. note gets the GPU's name, or the
// reason why it cannot.
static bool gpu_usable(const Config& config, const ResolvedOptions& r, std::string& note) {
  const auto selector = make_selector(r.options.selection);
  const char* const host_only = selector->host_only();
  // Checked before looking for a GPU, since none could run this selector.
  if (r.options.device == DeviceKind::CUDA && host_only)
    fail(RIFFLE_UNSUPPORTED,
         "`selection.selector` is %s, which %s: device is cuda, expected cpu or emu",
         selector->name(), host_only);
  if (!cuda_usable(note)) return false;
  if (host_only) {
    note = format("selector %s %s: it needs device cpu or emu", selector->name(), host_only);
    return false;
  }
  if (r.chooses_tiles() && !cuda_chooses_tiles(config, note)) return false;
  return cuda_shape_supported(config, r.layout, note);
}

// Returns the reason why no GPU is used. Requires: gpu_usable has set device_note, and was false.
static const char* why_no_gpu(const ResolvedOptions& r) {
  return r.device_note.empty() ? kBuiltForCpu : r.device_note.c_str();
}

// A pool was asked for with device AUTO, and no GPU can be used. A budget of GPU memory means that
// the user expects a GPU: the CPU would be many times slower, and an emulated pool slower still.
[[noreturn]] static void refuse_pool(const ResolvedOptions& r) {
  fail(RIFFLE_UNSUPPORTED,
       "`%s` is given, but no GPU can be used (%s): leave it out to run on the CPU, or give "
       "`device` emu to emulate a GPU's pool",
       r.options.gpu_mem ? "gpu_mem" : "slots", why_no_gpu(r));
}

// Lists of tokens need no check here. Layers without a window are alike, so if layers differ, one
// of them has a window, and Engine::check_selector refuses lists for such a model.
void require_supported(const KvShape& shape, const ContextOptions& o) {
  if (const std::string uneven = shape.uneven_choice(); !uneven.empty())
    fail(RIFFLE_UNSUPPORTED,
         "%s, expected the same number and size of KV heads in all layers without a sliding window",
         uneven.c_str());
  const std::string uneven = shape.uneven();
  if (uneven.empty()) return;
  if (o.pool_per_layer)
    fail(RIFFLE_UNSUPPORTED,
         "`pool_per_layer` is per-layer, expected unified, since layers differ (%s)",
         uneven.c_str());
  if (o.device != DeviceKind::CUDA) return;
  // If the host decides residency, the kernels take one shape for all layers.
  if (const char* const host = why_host_residency(o))
    fail(RIFFLE_UNSUPPORTED,
         "%s, expected that the GPU decides residency, since layers differ (%s)", host,
         uneven.c_str());
}

bool asks_for_pool(const ContextOptions& o) { return o.slots > 0 || why_host_residency(o); }

void choose_device(const Config& config, ResolvedOptions& r) {
  ContextOptions& o = r.options;
  if (o.device == DeviceKind::AUTO || o.device == DeviceKind::CUDA) {
    const bool usable = gpu_usable(config, r, r.device_note);
    r.no_driver = !usable && cuda_driver_missing();
    if (o.device == DeviceKind::CUDA && !usable)
      fail(RIFFLE_UNSUPPORTED, "device cuda: %s", why_no_gpu(r));
    if (!usable && (o.slots || o.gpu_mem)) refuse_pool(r);
    o.device = usable ? DeviceKind::CUDA : DeviceKind::CPU;
  }
  const DeviceEntry& device = entry_of(o.device);
  r.device_memory = device.device_memory;
  r.integrated = o.device == DeviceKind::CUDA && cuda_integrated();
  r.has_pool = device.has_pool && (!r.integrated || asks_for_pool(o));
  if (o.prefill_chunk == 0) o.prefill_chunk = device.prefill_chunk;
  if (r.device_memory && o.residency == ResidencyKind::DEVICE &&
      (o.evict != EvictRule::LRU || o.pool_per_layer || !o.pin))
    fail(RIFFLE_UNSUPPORTED,
         "`residency` device needs one pool for all layers, `evict` lru and pinned memory");
  if (!device.has_pool && (o.slots || o.gpu_mem))
    fail(RIFFLE_BAD_ARGUMENT,
         "device %s has no slot pool: `slots` and `gpu_mem` need device cuda or emu",
         device_name(r));
  if (!r.device_memory && (o.residency != ResidencyKind::AUTO || !o.pin))
    fail(RIFFLE_BAD_ARGUMENT,
         "device %s has no GPU memory to manage: `residency` and `pin` need device cuda%s%s",
         device_name(r), r.device_note.empty() ? "" : ", but ", r.device_note.c_str());
  require_supported(kv_shape(config, r), o);
}

const char* device_name(const ResolvedOptions& r) { return entry_of(r.options.device).name; }

DeviceNeeds device_needs(const Model& model, const ResolvedOptions& r) {
  return entry_of(r.options.device).plan(model, r);
}

std::unique_ptr<Device> make_device(const Model& model, const ResolvedOptions& r,
                                    ThreadPool* threads) {
  return entry_of(r.options.device).make(model, r, threads);
}

}  // namespace riffle
