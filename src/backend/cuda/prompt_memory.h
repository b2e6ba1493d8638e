// Device memory that only prompts need. If riffle chooses the number of slots and the device
// decides residency, the pool lends the memory of its last slots while a prompt is read. Otherwise
// prompts have memory of their own.
#pragma once
#include <vector>

#include "backend/cuda/device.h"

namespace riffle::cuda {

// A region that is handed out from its beginning to its end, and taken back all at once.
class DeviceArena {
 public:
  void open(std::byte* data, uint64_t bytes) { data_ = data, bytes_ = bytes, used_ = 0; }
  void close() { *this = DeviceArena(); }
  bool is_open() const { return data_ != nullptr; }
  // Takes memory as DeviceHeap::take does. The buffer may be used until close.
  Buffer take(size_t bytes, const char* what);
  static uint64_t rounded(uint64_t bytes) { return DeviceHeap::rounded(bytes); }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0, used_ = 0;
};

// The residual stream of a prompt, f32 [n][dim]. It is on the device, or in host memory (pinned if
// the system allows it) with the rows of two chunks on the device: the current ones, and rows that
// are being copied.
class PromptRows {
 public:
  explicit PromptRows(Stream* compute) : compute_(compute) {}

  // Returns the bytes of each buffer on the device, for prompts of n rows that are read in chunks.
  static std::vector<uint64_t> buffer_bytes(int64_t n, int64_t dim, int64_t chunk, bool on_host);

  // may_pin: whether to ask for pinned memory; without it copies are slower.
  void begin(DeviceArena& arena, int64_t n, int64_t dim, int64_t chunk, bool on_host, bool may_pin);
  // Implements Prompt::rows.
  float* rows(int64_t first, int64_t n, bool fresh, int64_t next);
  // After: later work may use the memory for something else.
  void end();

 private:
  struct Piece {
    int64_t first = 0, n = 0;
  };
  void load(Piece piece, int slot);
  void store();
  size_t bytes_of(int64_t rows) const { return size_t(rows) * dim_ * sizeof(float); }

  Stream* compute_;
  Stream copy_;
  Event computed_, copied_, loaded_[2];
  int64_t n_ = 0, dim_ = 0, chunk_ = 0;
  bool staged_ = false;
  Buffer all_;       // not staged: [n][dim]
  Buffer stage_[2];  // [chunk][dim] each
  Buffer host_;      // [n][dim]; kept for the next prompt
  int at_ = 0;       // index in stage_
  Piece here_, coming_;
};

}  // namespace riffle::cuda
