// Data that selectors keep of a sequence on a GPU: digests, codes of keys, last selections, stamps
// of last use.
#include "backend/cuda/cuda_kv.h"
#include "util/error.h"

namespace riffle::cuda {

void CudaKv::digest_layer(SequenceKv& s, int layer, int64_t first, int64_t last,
                          const std::byte* base, int64_t n_blocks) {
  if (last <= first) return;
  CudaSequence& d = on_device(s);
  const int heads = shape().heads(layer);
  const KvLayout& l = layout(layer);
  const int64_t stride = digest_stride(s.spec), entry = index_entry(d, layer, 0);
  if (s.spec.kept)
    check(build_digests(base, n_blocks, first, last, heads, l, static_cast<DigestKind>(s.spec.kind),
                        s.spec.with_mean, d.digests.as<uint16_t>() + entry * stride, stride,
                        d.bound_factor.as<float>() + entry, d.max_blocks, *compute_),
          "building digests");
  if (d.codes.size() == 0) return;
  check(encode_keys(d.kind, base, n_blocks, first, last, heads, l,
                    d.codes.as<std::byte>() + entry * code_bytes(d.kind), d.max_blocks, *compute_),
        "coding keys");
}

void CudaKv::refuse_inside_layer() const {
  if (reading_)
    fail(
        RIFFLE_BAD_ARGUMENT,
        "the session needs other digests or codes first; they cannot be built while a scheduler is "
        "inside a layer of a prompt");
}

CudaKv::HeadRoom::HeadRoom(CudaKv& kv) : kv_(kv), opened_(!kv.prompt_memory_.is_open()) {
  kv.refuse_inside_layer();
  kv.flush_.wait("flushing KV");
  if (opened_) kv.open_prompt_memory();
}

CudaKv::HeadRoom::~HeadRoom() {
  if (!opened_) return;
  try {
    kv_.close_prompt_memory();
  } catch (const Error&) {  // the device is lost: the next operation reports it
  }
}

// Allocates before it changes anything, so a failure leaves the sequence its digests. If memory is
// short, the codes of keys are freed; require_codes builds them again.
void CudaKv::change_digests(SequenceKv& s, const DigestSpec& spec) {
  const DeviceScope on(device_.ordinal);
  CudaSequence& d = on_device(s);
  if (s.spec == spec && !d.stale) return;
  const SequenceBytes bytes = bytes_of(spec, d.max_blocks);
  Buffer digests, factors;
  const auto take = [&] {
    if (d.digests.size() < bytes.digests)
      digests = heap_->take(bytes.digests, "a session's digests");
    if (d.bound_factor.size() == 0)
      factors = heap_->take(bytes.bound_factor, "a session's digests");
  };
  refuse_inside_layer();
  try {
    take();
  } catch (const Error& e) {
    if (e.status() != RIFFLE_OUT_OF_MEMORY || d.codes.size() == 0) throw;
    compute_->wait("building digests");
    d.codes = Buffer();
    d.kind = KeyCodes::None;
    take();
  }
  compute_->wait("building digests");
  if (digests.size() > 0) d.digests = std::move(digests);
  if (factors.size() > 0) d.bound_factor = std::move(factors);
  s.spec = spec;
  d.stale = true;
  build_all_digests(s, spec);
}

// Codes of another kind are freed first, since there may be no room for both.
void CudaKv::require_codes(SequenceKv& s, KeyCodes kind) {
  CudaSequence& d = on_device(s);
  if (kind == KeyCodes::None || d.kind == kind) return;
  const DeviceScope on(device_.ordinal);
  compute_->wait("coding keys");
  d.codes = Buffer();
  d.kind = KeyCodes::None;
  Buffer codes = heap_->take(bytes_of(s.spec, d.max_blocks).entries * code_bytes(kind),
                             "a session's key codes");
  const int64_t full = s.n_tokens / block_size_;
  const HeadRoom head(*this);
  for (int layer = 0; full > 0 && layer < shape().n_layers(); ++layer)
    for (int h = 0; shape().indexed(layer) && h < shape().heads(layer); ++h) {
      copy_blocks(s, layer, h, 1, 0, full, head, 0, false, *compute_);
      check(encode_keys(kind, head, full, 0, full, 1, layout(layer),
                        codes.as<std::byte>() + index_entry(d, layer, h) * code_bytes(kind),
                        d.max_blocks, *compute_),
            "coding keys");
    }
  compute_->wait("coding keys");
  d.codes = std::move(codes);
  d.kind = kind;
}

void CudaKv::require_kept(SequenceKv& s, const StepSelection& selection) {
  CudaSequence& d = on_device(s);
  const uint64_t bytes = kept_bytes(config_, shape(), selection, d.max_blocks);
  if (d.kept.size() >= bytes) return;
  const DeviceScope on(device_.ordinal);
  d.kept = heap_->take(bytes, "a session's last selections");
  forget_kept(d);
}

// Makes the next step of every layer select again.
void CudaKv::forget_kept(CudaSequence& d) {
  if (d.kept.size() > 0)
    check(cudaMemsetAsync(d.kept.data(), 0, d.kept.size(), *compute_), "forgetting a selection");
}

void CudaKv::begin_working_set(SequenceKv& s, int window) {
  if (streamed()) return host_->begin_working_set(s, window);
  CudaSequence& d = on_device(s);
  if (window > 0 && d.counted_window != window) {
    if (d.last_use.size() == 0)
      d.last_use = heap_->take(bytes_of(s.spec, d.max_blocks).last_use, "a session's working set");
    check(cudaMemsetAsync(d.last_use.data(), 0, d.last_use.size(), *compute_),
          "clearing a working set");
  }
  d.counted_window = window;
}

// The stamps are cleared by the next step that counts.
void CudaKv::clear_working_set(SequenceKv& s) {
  KvStore::clear_working_set(s);
  on_device(s).counted_window = 0;
}

// After an error digests stay stale, and the next operation that needs them comes back here.
void CudaKv::build_all_digests(SequenceKv& s, const DigestSpec& spec) {
  CudaSequence& d = on_device(s);
  const int64_t full = s.n_tokens / block_size_;
  const HeadRoom head(*this);
  for (int layer = 0; full > 0 && layer < shape().n_layers(); ++layer)
    for (int h = 0; shape().indexed(layer) && h < shape().heads(layer); ++h) {
      const KvLayout& l = layout(layer);
      copy_blocks(s, layer, h, 1, 0, full, head, 0, false, *compute_);
      const int64_t stride = digest_stride(spec), entry = index_entry(d, layer, h);
      check(build_digests(head, full, 0, full, 1, l, static_cast<DigestKind>(spec.kind),
                          spec.with_mean, d.digests.as<uint16_t>() + entry * stride, stride,
                          d.bound_factor.as<float>() + entry, d.max_blocks, *compute_),
            "building digests");
    }
  compute_->wait("building digests");
  d.stale = false;
}

// Copies digests and codes of the full blocks, and the positions that rows are expected to read.
void CudaKv::copy_index(const SequenceKv& from, SequenceKv& to) {
  const CudaSequence& f = on_device(from);
  CudaSequence& t = on_device(to);
  const int64_t full = to.n_tokens / block_size_, stride = digest_stride(from.spec) * 2;
  t.stale = f.stale;
  if (f.codes.size() > 0) {
    t.codes = heap_->take(bytes_of(to.spec, t.max_blocks).entries * code_bytes(f.kind),
                          "a session's key codes");
    t.kind = f.kind;
  }
  const auto copy = [&](const Buffer& source, const Buffer& target, int64_t bytes) {
    if (full > 0 && shape().index_rows() > 0)
      check(cudaMemcpy2DAsync(target.data(), t.max_blocks * bytes, source.data(),
                              f.max_blocks * bytes, full * bytes, shape().index_rows(),
                              cudaMemcpyDeviceToDevice, *compute_),
            "copying digests");
  };
  if (!f.stale && from.spec.kept) {
    copy(f.digests, t.digests, stride);
    copy(f.bound_factor, t.bound_factor, sizeof(float));
  }
  if (f.codes.size() > 0) copy(f.codes, t.codes, code_bytes(f.kind));
  check(cudaMemcpyAsync(t.expected.data(), f.expected.data(), t.expected.size(),
                        cudaMemcpyDeviceToDevice, *compute_),
        "copying a session's history");
}

}  // namespace riffle::cuda
