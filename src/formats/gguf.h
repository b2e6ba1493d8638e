// Reads a GGUF file of version 2 or 3 (ggml docs/gguf.md): metadata and tensor list. Works on
// memory; touches no file system. Everything is checked here, once: all data that a GgufFile
// returns lies inside the file.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/raw_tensor.h"
#include "util/checked.h"

namespace riffle {

enum class GgufType : uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  BOOL,
  STRING,
  ARRAY,
  U64,
  I64,
  F64
};

// Returns the format's name of the type: "U32".
std::string name_of(GgufType type);

struct GgufValue {
  GgufType type = GgufType::U8;
  GgufType element = GgufType::U8;  // arrays: the type of their elements
  uint64_t count = 1;               // arrays: number of elements
  const uint8_t* data =
      nullptr;         // scalars: the value; strings: the text; arrays: the first element
  uint64_t bytes = 0;  // number of bytes at data
};

struct GgufFile {
  FileView file;
  std::map<std::string, GgufValue, std::less<>> metadata;
  TensorTable tensors;
  uint64_t data_offset = 0;  // where tensor data begins

  bool has(std::string_view key) const { return metadata.find(key) != metadata.end(); }
  // Return nothing if there is no such key. Throw RIFFLE_BAD_MODEL if its value has another type.
  // integer() accepts any width of integer, but no negative number.
  std::optional<uint64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // floats and integers
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;
  std::optional<std::vector<float>> floats(std::string_view key) const;  // an array of F32
  std::optional<std::vector<int64_t>> integers(
      std::string_view key) const;  // an array of any integer type; U64 below 2^63
};

// The formats of models, as errors name them.
inline constexpr const char* kModelFormats = "a GGUF file or a Hugging Face folder";

// The views in the result point into file. Throws RIFFLE_BAD_MODEL; RIFFLE_UNSUPPORTED for other
// versions of GGUF. Tensor types that riffle lacks are listed, not refused. expected: the words of
// the error for another kind of file.
GgufFile parse_gguf(const FileView& file, const std::string& expected = kModelFormats);

}  // namespace riffle
