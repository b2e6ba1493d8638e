// States of recurrent layers on the device, and their copies in the host store.
#include "backend/cuda/cuda_kv.h"
#include "backend/recurrent_shape.h"
#include "kernels/cuda/recurrent/recurrent.h"
#include "util/error.h"

namespace riffle::cuda {

// Returns the values of a kept row of RecurStep::inputs_at.
static int64_t kept_inputs(const Config& c) {
  return std::visit([](const auto& shape) { return recurrent_inputs(shape); }, recurrent_shape(c));
}

// The inputs lie behind the states, layer by layer.
int64_t kept_inputs_at(const Config& c, const KvShape& shape, int lookup, int layer) {
  int64_t before = 0;
  for (int i = 0; i < layer; ++i) before += c.recurs(i);
  return static_cast<int64_t>(shape.state_bytes()) +
         before * lookup * kept_inputs(c) * int64_t{sizeof(float)};
}

uint64_t device_states_bytes(const Config& c, const KvShape& shape, int lookup) {
  return shape.state_bytes() == 0
             ? 0
             : static_cast<uint64_t>(kept_inputs_at(c, shape, lookup, shape.n_layers()));
}

void CudaKv::open_states(DeviceStates& st) {
  // A block that was given back may be used again while a copy to it is under way. A file's states
  // would be written to it by the CPU.
  flush_.wait("copying states");
  for (Buffer& b : st.buffers) {
    b = heap_->take(device_states_bytes(config_, shape(), lookup_), "a session's states");
    // Copies to the host store take the padding between layers too.
    check(cudaMemsetAsync(b.data(), 0, b.size(), *compute_), "clearing a session's states");
  }
}

void CudaKv::describe_states(const CudaSequence& d, StepSequence& out) const {
  const DeviceStates& st = d.states;
  out.state = st.n_tokens > 0 ? st.buffers[st.newest].as<std::byte>() : nullptr;
  out.next_state = st.buffers[st.newest ^ 1].as<std::byte>();
  out.replayed = st.replayed;
}

const float* CudaKv::state(const SequenceKv& s, int layer) const {
  const DeviceStates& st = on_device(s).states;
  if (st.n_tokens == 0) return nullptr;
  return reinterpret_cast<const float*>(st.buffers[st.newest].as<std::byte>() +
                                        shape().state_at(layer));
}

float* CudaKv::next_state(const SequenceKv& s, int layer) const {
  const DeviceStates& st = on_device(s).states;
  return reinterpret_cast<float*>(st.buffers[st.newest ^ 1].as<std::byte>() +
                                  shape().state_at(layer));
}

// After: the device has the states at s.n_tokens, perhaps with kept inputs, and the other buffer
// may be written to.
void CudaKv::bring_states(SequenceKv& s) {
  if (!has_states()) return;
  DeviceStates& st = on_device(s).states;
  st.ended = -1;
  check(cudaStreamWaitEvent(*compute_, st.copied[st.newest ^ 1]), "waiting for a copy of states");
  if (st.n_tokens >= 0 && st.n_tokens + st.replayed == s.n_tokens) return;
  check(cudaStreamWaitEvent(*compute_, st.copied[st.newest]), "waiting for a copy of states");
  st.n_tokens = -1;
  st.replayed = 0;
  if (s.n_tokens > 0) {
    const std::byte* const block = s.states.back().block;
    if (!block) fail(RIFFLE_INTERNAL, "the states of a session are lost: prefill it again");
    check(cudaMemcpyAsync(st.buffers[st.newest].data(), block, shape().state_bytes(),
                          cudaMemcpyHostToDevice, *compute_),
          "loading states");
    counters.loaded_bytes += shape().state_bytes();
  }
  st.n_tokens = s.n_tokens;
}

void CudaKv::end_states(SequenceKv* const* sequences, size_t n) {
  if (!has_states()) return;
  for (size_t i = 0; i < n; ++i) on_device(*sequences[i]).states.ended = sequences[i]->n_tokens;
}

// Makes the other buffer, which has the states after n_tokens, the newest.
void CudaKv::take_states(SequenceKv& s, int64_t n_tokens) {
  DeviceStates& st = on_device(s).states;
  st.newest ^= 1;
  st.n_tokens = n_tokens;
  st.replayed = 0;
  st.ended = -1;
}

// n_tokens has grown by one: a step's first row, or one that was computed ahead.
void CudaKv::advance_states(SequenceKv& s) {
  if (!has_states()) return;
  DeviceStates& st = on_device(s).states;
  if (st.ended == s.n_tokens - 1) take_states(s, s.n_tokens);
  else if (st.n_tokens + st.replayed == s.n_tokens - 1) ++st.replayed;
  if (s.n_tokens % Checkpoints::kApart != 0) return;
  for (StateAt& state : s.next_states)
    if (state.n_tokens == s.n_tokens) keep_states(s, state);
}

// Goes through the kept inputs, so that no token is left after the newest states.
void CudaKv::replay_states(SequenceKv& s) {
  DeviceStates& st = on_device(s).states;
  if (st.replayed == 0) return;
  check(cudaStreamWaitEvent(*compute_, st.copied[st.newest ^ 1]), "waiting for a copy of states");
  StepSequence of = describe(s);
  of.n_rows = 0;
  replay_(of);
  take_states(s, s.n_tokens);
}

// Waits until the slab of a block is page-locked, so that a copy to it need not be staged.
void CudaKv::wait_locked(const std::byte* block) {
  std::vector<std::byte*> unlocked;
  slabs_->add_unlocked(&block, 1, unlocked);
  slabs_->wait(unlocked);
}

// Begins to copy the newest states to a block of the host store.
void CudaKv::copy_states(SequenceKv& s, std::byte* block) {
  replay_states(s);
  DeviceStates& st = on_device(s).states;
  wait_locked(block);
  computed_.record(*compute_);
  check(cudaStreamWaitEvent(flush_, computed_), "copying states");
  check(cudaMemcpyAsync(block, st.buffers[st.newest].data(), shape().state_bytes(),
                        cudaMemcpyDeviceToHost, flush_),
        "copying states");
  st.copied[st.newest].record(flush_);
  states_copied_.record(flush_);
  counters.flushed_bytes += shape().state_bytes();
}

// Copies the newest states for a checkpoint. Without memory for it the sequence can be cut at fewer
// lengths.
void CudaKv::keep_states(SequenceKv& s, StateAt& state) {
  const DeviceScope on(device_.ordinal);
  if (!state.block) {
    try {
      state.block = host_->take_state();
    } catch (const Error&) {
      return;
    }
  }
  copy_states(s, state.block);
}

void CudaKv::settle_states(SequenceKv& s) {
  if (s.states.empty() || s.states.back().block) return;
  const DeviceScope on(device_.ordinal);
  bring_states(s);
  s.states.back().block = host_->take_state();
  copy_states(s, s.states.back().block);
  flush_.wait("copying states");
}

void CudaKv::begin_states(SequenceKv& s, int64_t n_total) {
  if (!has_states()) return;
  const DeviceScope on(device_.ordinal);
  bring_states(s);
  replay_states(s);
  // A block that was given back may be used again for the prompt while a copy to it is under way.
  check(cudaStreamWaitEvent(*compute_, states_copied_), "waiting for a copy of states");
  if (s.states.empty() || s.states.back().block) return;
  StateAt& newest = s.states.back();
  if (newest.kind != Checkpoint::OTHER || Checkpoints::on_grid(newest.n_tokens, n_total))
    keep_states(s, newest);
}

void CudaKv::keep_state(int layer, const StateAt& checkpoint, const float* state) {
  wait_locked(checkpoint.block);
  const auto bytes = static_cast<size_t>(recurrent_state(config_)) * sizeof(float);
  check(cudaMemcpyAsync(checkpoint.block + shape().state_at(layer), state, bytes,
                        cudaMemcpyDeviceToHost, *compute_),
        "copying states");
  counters.flushed_bytes += bytes;
}

}  // namespace riffle::cuda
