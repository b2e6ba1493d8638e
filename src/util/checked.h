// Tools for all readers of hostile files: a view of bytes, arithmetic that cannot wrap, one-line
// errors.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace riffle {

// Bytes of a file, or of a test or a fuzzer. Does not own them.
struct FileView {
  const uint8_t* data = nullptr;
  uint64_t size = 0;
  std::string name;  // for error texts
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data), static_cast<size_t>(size)};
  }
};

// Return false if the result does not fit 64 bits.
inline bool checked_add(uint64_t a, uint64_t b, uint64_t* sum) {
  return !__builtin_add_overflow(a, b, sum);
}
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

// Tells whether [offset, offset+length) lies inside [0, size).
inline bool inside(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// Returns the value of type T at p, which may be unaligned. Files are little-endian, as are the
// machines riffle runs on.
template <class T>
T load_unaligned(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Returns text from a file in a form fit for a one-line message: all except printable ASCII becomes
// \xNN, and long text is cut.
std::string printable(std::string_view text, size_t max_bytes = 80);

// bad_model and unsupported throw RIFFLE_BAD_MODEL and RIFFLE_UNSUPPORTED with the text "FILE:
// FIELD: found FOUND, expected EXPECTED". field and found may hold text from the file.
[[noreturn]] void bad_model(std::string_view file, std::string_view field, std::string_view found,
                            std::string_view expected);
// Refuses the pointer text that a clone without Git LFS has in a file's place.
void refuse_lfs_pointer(std::string_view file, std::string_view text);
[[noreturn]] void unsupported(std::string_view file, std::string_view field, std::string_view found,
                              std::string_view expected);

}  // namespace riffle
