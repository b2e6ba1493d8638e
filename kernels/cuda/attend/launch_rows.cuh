// Launch of an attention kernel: the size of its warps' rings, and the number of CTAs.
#pragma once
#include "kernels/cuda/attend/attend_row.cuh"
#include "kernels/cuda/launch.cuh"

namespace riffle::cuda {

// A warp's ring: its number of blocks, or half a block; and the bytes of all rings of a CTA.
struct RingSize {
  int n_stages = 1;
  bool halves = false;
  size_t bytes = 0;
};
// Returns the bytes of the rings of all warps of a CTA.
template <class Warp>
int64_t ring_bytes(const KvLayout& layout, int n_stages, bool halves) {
  return int64_t{16} * kCtaWarps * Warp::ring_chunks(layout.block_size, n_stages, halves);
}
// Sets the largest ring that fits. cudaErrorNotSupported: not even half a block fits.
template <class Warp>
Status ring_of(const void* kernel, const KvLayout& layout, const DeviceLimits& limits,
               RingSize& ring) {
  cudaFuncAttributes attributes;
  if (Status status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess)
    return status;
  const int64_t room = limits.smem_per_block - static_cast<int64_t>(attributes.sharedSizeBytes);
  ring = {};
  while (ring.n_stages < 3 && ring_bytes<Warp>(layout, ring.n_stages + 1, false) <= room)
    ++ring.n_stages;
  ring.halves = Warp::kMayHalve && ring_bytes<Warp>(layout, ring.n_stages, false) > room;
  const int64_t bytes = ring_bytes<Warp>(layout, ring.n_stages, ring.halves);
  ring.bytes = static_cast<size_t>(bytes);
  return bytes > room ? cudaErrorNotSupported : cudaSuccess;
}

// Facts about its rows that the launch of an attention kernel needs.
struct RowTraits {
  bool selects = false;   // rows of a selection, on the device
  bool together = false;  // CTAs of a row, or of its parts, wait for each other
  bool apart = false;     // rows wait for no other CTA: they need not run together
};

// Sets the ring and the numbers of row groups and loaders. The grid has as many row groups as can
// run together (they wait for each other), at most one an item. Rows of a selection mostly wait for
// the host and for each other. If more of them step than fit next to full rings, shorter rings let
// more of them wait at once, and some CTAs fetch for the rows whose turn is still to come (not if
// rows have parts: then the first part fetches for all). Row groups take the items in turns. Rings
// do not become shorter for slices, since of the most slices few have positions in most rows of a
// selection. Latent attention is an exception: its blocks take long to compute, so more warps help
// more than longer rings.
template <class Warp>
Status plan_launch(const void* kernel, const RowTraits& traits, const DeviceLimits& limits,
                   AttendArgs& a, RingSize& ring) {
  if (Status status = ring_of<Warp>(kernel, a.step.layout, limits, ring); status != cudaSuccess)
    return status;
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(ring.bytes));
      status != cudaSuccess)
    return status;
  const int rows = a.step.n * a.step.n_kv_heads, items = items_of_slice(a) * a.slices;
  int together = 0;
  if (Status status = ctas_together(kernel, kCtaThreads, ring.bytes, limits.n_sm, together);
      status != cudaSuccess)
    return status;
  for (RingSize less = ring;
       less.n_stages > 1 &&
       together < items_of_slice(a) * kRowCtas * (Warp::kLatent ? a.slices : 1) &&
       (traits.selects || Warp::kLatent);) {
    --less.n_stages;
    less.bytes = static_cast<size_t>(ring_bytes<Warp>(a.step.layout, less.n_stages, less.halves));
    int more = 0;
    if (Status status = ctas_together(kernel, kCtaThreads, less.bytes, limits.n_sm, more);
        status != cudaSuccess)
      return status;
    if (more > together) ring = less, together = more;
  }
  a.n_stages = ring.n_stages;
  a.halves = ring.halves;
  a.n_groups = together / kRowCtas;
  if (a.n_groups < 1) return cudaErrorNotSupported;
  if (traits.apart || items <= a.n_groups) {
    a.n_groups = items;
  } else if (traits.selects && a.step.pool.n_slots > 0 && a.parts == 1) {
    // At least one loader for each group: half as many do not fill a PCIe 5 link (H200), and rows
    // would wait for them. If there are many groups, one is given up for loaders.
    int groups = a.n_groups, spare = together - groups * kRowCtas;
    if (spare < groups && groups >= 8) --groups, spare += kRowCtas;
    if (spare >= groups && rows - groups >= groups) {
      a.n_groups = groups;
      a.n_loaders = spare < rows - groups ? spare : rows - groups;
    }
  }
  return cudaSuccess;
}

// The CTAs of a row wait for each other and for those that fetch ahead, so all must get to run. A
// cooperative launch guarantees this. A dependent launch cannot be cooperative, but no more CTAs
// are launched than fit, earlier kernels end by themselves, and later ones begin after all of these
// have started. Only kernels of other streams can interfere: see DecodeStep::fault.
template <class Warp, class Args>
Status launch_rows(void (*kernel)(Args), Args a, const RowTraits& traits,
                   const DeviceLimits& limits, cudaStream_t stream) {
  RingSize ring;
  if (Status status =
          plan_launch<Warp>(reinterpret_cast<const void*>(kernel), traits, limits, a, ring);
      status != cudaSuccess)
    return status;
  cudaLaunchAttribute attribute[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(a.n_groups * kRowCtas + a.n_loaders);
  config.blockDim = dim3(kCtaThreads);
  config.dynamicSmemBytes = ring.bytes;
  config.stream = stream;
  config.attrs = attribute;
  if (a.step.overlap) {
    attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  } else if (traits.together || a.n_loaders > 0) {
    attribute[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attribute[config.numAttrs++].val.cooperative = 1;
  }
  if (Status status = cudaLaunchKernelEx(&config, kernel, a); status != cudaSuccess) return status;
  return cudaGetLastError();
}

}  // namespace riffle::cuda
