#include "formats/gguf_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "formats/raw_tensor.h"
#include "util/error.h"
#include "util/file.h"

namespace riffle {

namespace {

constexpr uint64_t kAlignment = 32;  // readers' default without general.alignment
constexpr size_t kBufferBytes = 1 << 20;

template <class T>
void append(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out += text;
}

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

uint32_t gguf_type_of(DType type) { return dtype_info(type).ggml; }

GgufFileWriter::GgufFileWriter(std::string path, bool overwrite)
    : path_(std::move(path)), target_(real_path(path_)), overwrite_(overwrite) {
  struct stat info;
  if (::stat(path_.c_str(), &info) == 0) {
    if (const char* found = not_regular(info))
      throw Error(RIFFLE_BAD_ARGUMENT,
                  path_ + ": found a " + found + ", expected the name of a file to write");
    if (!overwrite_) throw Error(RIFFLE_BAD_ARGUMENT, path_ + ": the file exists");
  }
  temporary_ = target_ + ".part-" + std::to_string(::getpid());
  // Comes before the file exists: an exception here would leave the file behind.
  buffer_.reserve(kBufferBytes);
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) io_error(path_, "cannot create a temporary file in its folder", errno);
}

GgufFileWriter::~GgufFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void GgufFileWriter::key(std::string_view name, GgufType type) {
  append_text(keys_, name);
  append<uint32_t>(keys_, static_cast<uint32_t>(type));
  ++n_keys_;
}

void GgufFileWriter::u32(std::string_view name, uint32_t value) {
  key(name, GgufType::U32);
  append(keys_, value);
}
void GgufFileWriter::f32(std::string_view name, float value) {
  key(name, GgufType::F32);
  append(keys_, value);
}
void GgufFileWriter::boolean(std::string_view name, bool value) {
  key(name, GgufType::BOOL);
  append<uint8_t>(keys_, value ? 1 : 0);
}
void GgufFileWriter::booleans(std::string_view name, const std::vector<bool>& values) {
  key(name, GgufType::ARRAY);
  append<uint32_t>(keys_, static_cast<uint32_t>(GgufType::BOOL));
  append<uint64_t>(keys_, values.size());
  for (const bool value : values) append<uint8_t>(keys_, value ? 1 : 0);
}
void GgufFileWriter::text(std::string_view name, std::string_view value) {
  key(name, GgufType::STRING);
  append_text(keys_, value);
}
void GgufFileWriter::strings(std::string_view name, const std::vector<std::string>& values) {
  key(name, GgufType::ARRAY);
  append<uint32_t>(keys_, static_cast<uint32_t>(GgufType::STRING));
  append<uint64_t>(keys_, values.size());
  for (const std::string& value : values) append_text(keys_, value);
}
void GgufFileWriter::floats(std::string_view name, const std::vector<float>& values) {
  key(name, GgufType::ARRAY);
  append<uint32_t>(keys_, static_cast<uint32_t>(GgufType::F32));
  append<uint64_t>(keys_, values.size());
  for (const float value : values) append(keys_, value);
}
void GgufFileWriter::integers(std::string_view name, const std::vector<int32_t>& values) {
  key(name, GgufType::ARRAY);
  append<uint32_t>(keys_, static_cast<uint32_t>(GgufType::I32));
  append<uint64_t>(keys_, values.size());
  for (const int32_t value : values) append(keys_, value);
}
void GgufFileWriter::value(std::string_view name, const GgufValue& value) {
  key(name, value.type);
  if (value.type == GgufType::STRING) append<uint64_t>(keys_, value.bytes);
  if (value.type == GgufType::ARRAY) {
    append<uint32_t>(keys_, static_cast<uint32_t>(value.element));
    append<uint64_t>(keys_, value.count);
  }
  keys_.append(reinterpret_cast<const char*>(value.data), value.bytes);
}

void GgufFileWriter::tensor(std::string_view name, DType type, const std::vector<uint64_t>& shape) {
  uint64_t bytes = 0;
  if (!tensor_bytes(type, shape, &bytes)) {
    fail(RIFFLE_INTERNAL, "%s: tensor %.*s of shape %s cannot be %s", path_.c_str(),
         static_cast<int>(name.size()), name.data(), shape_text(shape).c_str(),
         dtype_info(type).name);
  }
  append_text(infos_, name);
  append<uint32_t>(infos_, static_cast<uint32_t>(shape.size()));
  for (auto n = shape.rbegin(); n != shape.rend(); ++n) append<uint64_t>(infos_, *n);
  append<uint32_t>(infos_, gguf_type_of(type));
  append<uint64_t>(infos_, data_bytes_);
  data_bytes_ += aligned(bytes);
  weight_bytes_ += bytes;
  sizes_.push_back(bytes);
  ++n_tensors_;
}

void GgufFileWriter::begin() {
  std::string head = "GGUF";
  append<uint32_t>(head, 3);
  append<uint64_t>(head, n_tensors_);
  append<uint64_t>(head, n_keys_);
  head += keys_;
  head += infos_;
  head.resize(aligned(head.size()));
  total_ = head.size() + data_bytes_;
  reserve_room(fd_, path_, 0, total_);
  put(head.data(), head.size());
  keys_ = infos_ = std::string();
}

void GgufFileWriter::write(const void* data, uint64_t bytes) {
  while (current_ < sizes_.size() && bytes > 0 && in_tensor_ == sizes_[current_])
    ++current_, in_tensor_ = 0;
  if (bytes == 0) return;
  if (current_ == sizes_.size() || bytes > sizes_[current_] - in_tensor_)
    fail(RIFFLE_INTERNAL, "%s: more bytes than tensor %zu has", path_.c_str(), current_);
  put(data, bytes);
  in_tensor_ += bytes;
  if (in_tensor_ == sizes_[current_]) {
    const char zeros[kAlignment] = {};
    put(zeros, aligned(in_tensor_) - in_tensor_);
  }
}

void GgufFileWriter::put(const void* data, uint64_t bytes) {
  if (buffer_.size() + bytes <= kBufferBytes) {
    buffer_.append(static_cast<const char*>(data), bytes);
    return;
  }
  write_all(buffer_.data(), buffer_.size());
  buffer_.clear();
  write_all(static_cast<const char*>(data), bytes);
}

void GgufFileWriter::write_all(const char* data, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, data, std::min<uint64_t>(bytes, 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io_error(path_, "cannot write", errno);
    data += n;
    bytes -= static_cast<uint64_t>(n);
  }
}

void GgufFileWriter::finish() {
  const bool whole =
      sizes_.empty() || (current_ == sizes_.size() - 1 && in_tensor_ == sizes_[current_]);
  if (!whole)
    fail(RIFFLE_INTERNAL, "%s: only %zu of %zu tensors were written", path_.c_str(), current_,
         sizes_.size());
  write_all(buffer_.data(), buffer_.size());
  if (::fsync(fd_) != 0 && errno != EINVAL) io_error(path_, "cannot write", errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  const auto give_up = [&](const char* what, int code) {
    ::unlink(temporary_.c_str());
    io_error(path_, what, code);
  };
  if (closed != 0) give_up("cannot write", errno);
  // A file that another program created meanwhile must not be replaced.
  if (!overwrite_) {
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0)
      return;
    if (errno == EEXIST) give_up("cannot rename to it", errno);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) give_up("cannot rename to it", errno);
}

}  // namespace riffle
