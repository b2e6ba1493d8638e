// Writes a GGUF v3 file (ggml docs/gguf.md) from its first byte to its last: metadata, then the
// list of tensors, then their bytes in the order of the list. Only the header is kept in memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "kernels/common/dtype.h"

namespace riffle {

class GgufFileWriter {
 public:
  // Writes to PATH.part-PID, which finish() renames to path; without finish() that file is removed.
  // overwrite: path may exist. Throws RIFFLE_IO; RIFFLE_BAD_ARGUMENT if path exists, or is no
  // regular file.
  GgufFileWriter(std::string path, bool overwrite);
  ~GgufFileWriter();
  GgufFileWriter(const GgufFileWriter&) = delete;
  GgufFileWriter& operator=(const GgufFileWriter&) = delete;

  // ---- first: metadata and tensors
  void u32(std::string_view key, uint32_t value);
  void f32(std::string_view key, float value);
  void boolean(std::string_view key, bool value);
  void booleans(std::string_view key, const std::vector<bool>& values);
  void text(std::string_view key, std::string_view value);
  void strings(std::string_view key, const std::vector<std::string>& values);
  void floats(std::string_view key, const std::vector<float>& values);
  void integers(std::string_view key, const std::vector<int32_t>& values);
  void value(std::string_view key, const GgufValue& value);  // as another file has it
  // shape: outermost first, as in RawTensor.
  void tensor(std::string_view name, DType type, const std::vector<uint64_t>& shape);

  // ---- then: writes the header and reserves the room that all of it takes, so that a full disk is
  // noticed at once
  void begin();
  // ---- then: the tensors' bytes, one after another, in pieces of any size that do not reach
  // across tensors
  void write(const void* data, uint64_t bytes);
  // ---- last: throws RIFFLE_INTERNAL unless every byte was written.
  void finish();

  uint64_t file_bytes() const { return total_; }           // after begin()
  uint64_t weight_bytes() const { return weight_bytes_; }  // bytes of the tensors, without padding

 private:
  void key(std::string_view name, GgufType type);
  void put(const void* data, uint64_t bytes);
  void write_all(const char* data, uint64_t bytes);

  std::string path_, target_, temporary_;  // target_: what path_ links to
  bool overwrite_;
  int fd_ = -1;
  std::string keys_, infos_;
  uint64_t n_keys_ = 0, n_tensors_ = 0, data_bytes_ = 0, weight_bytes_ = 0;
  std::vector<uint64_t> sizes_;
  size_t current_ = 0;      // index of the tensor that is being written
  uint64_t in_tensor_ = 0;  // bytes of that tensor that were written
  std::string buffer_;
  uint64_t total_ = 0;
};

// Returns the number of a type in GGUF files.
uint32_t gguf_type_of(DType type);

}  // namespace riffle
