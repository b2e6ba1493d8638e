#include "formats/gguf.h"

#include <algorithm>
#include <limits>

#include "util/error.h"
#include "util/file.h"

namespace riffle {

namespace {

// Limits: more than any model has, and small enough that a hostile file cannot make us allocate
// much. Counts are also checked against the bytes left in the file before anything is allocated for
// them.
constexpr uint64_t kMaxTensors = 100'000;
constexpr uint64_t kMaxKeys = 100'000;
constexpr uint64_t kMaxKeyBytes = 65'535;     // the format's own limit
constexpr uint64_t kMaxTensorNameBytes = 64;  // the format's own limit
constexpr uint64_t kMaxStringBytes = 16 << 20;
constexpr uint64_t kMaxArrayLength = 16 << 20;
constexpr uint64_t kMaxDims = 4;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;  // length, name, type, value
constexpr uint64_t kMinTensorBytes =
    8 + 1 + 4 + 8 + 4 + 8;  // length, name, rank, one dimension, type, offset

constexpr uint64_t kScalarBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr const char* kTypeNames[] = {"U8",   "I8",     "U16",   "I16", "U32", "I32", "F32",
                                      "BOOL", "STRING", "ARRAY", "U64", "I64", "F64"};

}  // namespace

std::string name_of(GgufType type) { return kTypeNames[static_cast<uint32_t>(type)]; }

namespace {
uint64_t scalar_bytes(GgufType type) { return kScalarBytes[static_cast<uint32_t>(type)]; }

const char* ggml_type_name(uint32_t type) {
  static constexpr const char* names[] = {
      "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
      "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
      "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
      "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
      "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
      "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};
  return type < std::size(names) ? names[type] : nullptr;
}

std::optional<DType> dtype_of(uint32_t ggml_type) {
  for (const DTypeInfo& info : kDTypes)
    if (info.ggml == ggml_type) return info.type;
  return std::nullopt;
}

// Reads the file in order and never beyond its end. `what` and `of` name the field for error texts:
// "value type" of "llama.block_count".
class Reader {
 public:
  explicit Reader(const FileView& file) : file_(file) {}
  uint64_t position() const { return pos_; }
  uint64_t left() const { return file_.size - pos_; }

  const uint8_t* take(uint64_t bytes, const char* what, std::string_view of) {
    if (bytes > left()) {
      fail_field(what, of, std::to_string(left()) + " bytes left in the file",
                 std::to_string(bytes) + " bytes");
    }
    const uint8_t* at = file_.data + pos_;
    pos_ += bytes;
    return at;
  }
  template <class T>
  T read(const char* what, std::string_view of = {}) {
    return load_unaligned<T>(take(sizeof(T), what, of));
  }
  std::string_view string(uint64_t max_bytes, const char* what, std::string_view of = {}) {
    const auto bytes = read<uint64_t>(what, of);
    if (bytes > max_bytes) {
      fail_field(what, of, std::to_string(bytes) + " bytes",
                 "at most " + std::to_string(max_bytes));
    }
    return {reinterpret_cast<const char*>(take(bytes, what, of)), static_cast<size_t>(bytes)};
  }
  // Reads a count of entries that take at least min_bytes each.
  uint64_t count(uint64_t max_count, uint64_t min_bytes, const char* what,
                 std::string_view of = {}) {
    const auto n = read<uint64_t>(what, of);
    if (n > max_count)
      fail_field(what, of, std::to_string(n), "at most " + std::to_string(max_count));
    if (n > left() / min_bytes) {
      fail_field(what, of, std::to_string(n),
                 "at most " + std::to_string(left() / min_bytes) +
                     ", the number for which the file has room");
    }
    return n;
  }
  GgufType type(const char* what, std::string_view of) {
    const auto raw = read<uint32_t>(what, of);
    if (raw > static_cast<uint32_t>(GgufType::F64))
      fail_field(what, of, std::to_string(raw), "0 to 12");
    return static_cast<GgufType>(raw);
  }
  [[noreturn]] void fail_field(const char* what, std::string_view of, const std::string& found,
                               const std::string& expected) const {
    bad_model(file_.name, of.empty() ? std::string(what) : std::string(of) + " " + what, found,
              expected);
  }

 private:
  const FileView& file_;
  uint64_t pos_ = 0;
};

void check_bools(Reader& r, const uint8_t* at, uint64_t n, std::string_view key) {
  for (uint64_t i = 0; i < n; ++i) {
    if (at[i] > 1)
      r.fail_field("value", key, "byte " + std::to_string(at[i]) + " in a BOOL", "0 or 1");
  }
}

// Skips the elements of an array, and checks them.
void skip_elements(Reader& r, GgufType element, uint64_t count, std::string_view key, int depth);

uint64_t read_array_head(Reader& r, GgufType* element, std::string_view key) {
  *element = r.type("array element type", key);
  const uint64_t least = *element == GgufType::STRING  ? 8
                         : *element == GgufType::ARRAY ? 12
                                                       : scalar_bytes(*element);
  return r.count(kMaxArrayLength, least, "array length", key);
}

void skip_elements(Reader& r, GgufType element, uint64_t count, std::string_view key, int depth) {
  if (element == GgufType::STRING) {
    for (uint64_t i = 0; i < count; ++i) r.string(kMaxStringBytes, "array string length", key);
  } else if (element == GgufType::ARRAY) {
    if (depth == kMaxArrayDepth)
      r.fail_field("array", key, "arrays nested too deep", "at most 4 levels");
    for (uint64_t i = 0; i < count; ++i) {
      GgufType inner;
      const uint64_t n = read_array_head(r, &inner, key);
      skip_elements(r, inner, n, key, depth + 1);
    }
  } else {
    const uint8_t* at =
        r.take(count * scalar_bytes(element), "array", key);  // count was checked: this fits
    if (element == GgufType::BOOL) check_bools(r, at, count, key);
  }
}

GgufValue read_value(Reader& r, const FileView& file, std::string_view key) {
  GgufValue value;
  value.type = r.type("value type", key);
  if (value.type == GgufType::STRING) {
    const std::string_view text = r.string(kMaxStringBytes, "string length", key);
    value.data = reinterpret_cast<const uint8_t*>(text.data());
    value.bytes = text.size();
  } else if (value.type == GgufType::ARRAY) {
    value.count = read_array_head(r, &value.element, key);
    const uint64_t begin = r.position();
    skip_elements(r, value.element, value.count, key, 1);
    value.data = file.data + begin;
    value.bytes = r.position() - begin;
  } else {
    value.bytes = scalar_bytes(value.type);
    value.data = r.take(value.bytes, "value", key);
    if (value.type == GgufType::BOOL) check_bools(r, value.data, 1, key);
  }
  return value;
}

struct TensorInfo {
  std::string name;
  RawTensor raw;
  uint64_t offset = 0;  // from the beginning of the tensor data
};

TensorInfo read_tensor_info(Reader& r, const FileView& file) {
  TensorInfo info;
  info.name = r.string(kMaxTensorNameBytes, "tensor name length");
  const std::string field = "tensor " + printable(info.name);
  const auto rank = r.read<uint32_t>("n_dims", field);
  if (rank < 1 || rank > kMaxDims) r.fail_field("n_dims", field, std::to_string(rank), "1 to 4");
  info.raw.shape.resize(rank);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto n = r.read<uint64_t>("dimension", field);
    if (n == 0)
      r.fail_field("shape", field, "dimension " + std::to_string(i) + " of 0", "1 or more");
    info.raw.shape[rank - 1 - i] = n;  // GGUF writes the row length first
    if (!checked_mul(elements, n, &elements) || elements > INT64_MAX) {
      r.fail_field("shape", field, "more than 2^63 values", "a tensor that fits the file");
    }
  }
  const auto type = r.read<uint32_t>("type", field);
  const char* type_name = ggml_type_name(type);
  if (!type_name) r.fail_field("type", field, std::to_string(type), "a tensor type of GGUF");
  info.raw.file = file.name;
  info.raw.type_name = type_name;
  info.raw.type = dtype_of(type);
  info.offset = r.read<uint64_t>("offset", field);
  if (info.raw.type && !tensor_bytes(*info.raw.type, info.raw.shape, &info.raw.bytes)) {
    r.fail_field("shape", field, shape_text(info.raw.shape) + " of " + type_name,
                 is_quantised(*info.raw.type) ? format("rows of a multiple of %d values",
                                                       dtype_info(*info.raw.type).block_values)
                                              : "a tensor that fits the file");
  }
  return info;
}

uint64_t read_alignment(const GgufFile& gguf) {
  const uint64_t alignment = gguf.integer("general.alignment").value_or(32);
  if (alignment < 8 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
    bad_model(gguf.file.name, "general.alignment", std::to_string(alignment),
              "a power of two from 8 to 2^20");
  }
  return alignment;
}

// Sets the tensors' data. Each must lie inside the file, aligned, and none may overlap another.
void place_tensors(GgufFile& gguf, std::vector<TensorInfo>& infos, uint64_t header_end) {
  const FileView& file = gguf.file;
  const uint64_t alignment = read_alignment(gguf);
  gguf.data_offset =
      (header_end + alignment - 1) / alignment * alignment;  // header_end is far below 2^63
  if (infos.empty()) return;
  if (gguf.data_offset > file.size) {
    bad_model(file.name, "file size", std::to_string(file.size) + " bytes",
              "at least " + std::to_string(gguf.data_offset) + ", where the tensor data begins");
  }
  const uint64_t data_bytes = file.size - gguf.data_offset;
  std::sort(infos.begin(), infos.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
  uint64_t taken = 0;
  for (TensorInfo& info : infos) {
    const std::string field = "tensor " + printable(info.name) + " offset";
    const std::string found =
        std::to_string(info.offset) + " and " + std::to_string(info.raw.bytes) + " bytes";
    if (info.offset % alignment != 0) {
      bad_model(file.name, field, std::to_string(info.offset),
                "a multiple of " + std::to_string(alignment));
    }
    if (!inside(info.offset, info.raw.bytes, data_bytes)) {
      bad_model(file.name, field, found,
                "both inside the " + std::to_string(data_bytes) + " bytes of tensor data");
    }
    if (info.offset < taken) {
      bad_model(file.name, field, found,
                "no overlap with the tensor that ends at " + std::to_string(taken));
    }
    taken = info.offset + info.raw.bytes;
    info.raw.data = file.data + gguf.data_offset + info.offset;
    if (!gguf.tensors.emplace(info.name, std::move(info.raw)).second) {
      bad_model(file.name, "tensor " + info.name, "the name twice", "once");
    }
  }
}

}  // namespace

GgufFile parse_gguf(const FileView& file, const std::string& expected) {
  GgufFile gguf;
  gguf.file = file;
  refuse_lfs_pointer(file.name, file.text());
  Reader r(gguf.file);
  if (file.size < 4) bad_model(file.name, "", std::to_string(file.size) + " bytes", expected);
  const std::string_view magic(reinterpret_cast<const char*>(r.take(4, "magic", {})), 4);
  // A safetensors file begins with a length of 8 bytes and JSON.
  if (magic != "GGUF" && file.text().substr(std::min<uint64_t>(8, file.size)).starts_with("{\""))
    throw Error(RIFFLE_BAD_MODEL,
                printable(file.name, 1000) +
                    ": found a safetensors file, expected a GGUF file or the folder that holds "
                    "this file and its config.json");
  if (magic != "GGUF") bad_model(file.name, "", words_of_beginning(file.text()), expected);
  const auto version = r.read<uint32_t>("version");
  // Version 3 added the other byte order to version 2 and nothing else.
  if (version == 1) unsupported(file.name, "version", "GGUF 1", "GGUF 2 or 3");
  if (version == 2u << 24 || version == 3u << 24)
    unsupported(file.name, "version", std::to_string(version >> 24) + " in big-endian order",
                "little-endian GGUF 2 or 3");
  if (version != 2 && version != 3)
    bad_model(file.name, "version", std::to_string(version), "2 or 3");

  const uint64_t n_tensors = r.count(kMaxTensors, kMinTensorBytes, "tensor_count");
  const uint64_t n_keys = r.count(kMaxKeys, kMinKeyBytes, "metadata_kv_count");
  for (uint64_t i = 0; i < n_keys; ++i) {
    const std::string_view key = r.string(kMaxKeyBytes, "metadata key length");
    if (key.empty()) bad_model(file.name, "metadata key length", "0", "1 or more");
    const GgufValue value = read_value(r, gguf.file, key);
    if (!gguf.metadata.emplace(std::string(key), value).second)
      bad_model(file.name, key, "the key twice", "once");
  }
  std::vector<TensorInfo> infos;
  infos.reserve(n_tensors);
  for (uint64_t i = 0; i < n_tensors; ++i) infos.push_back(read_tensor_info(r, gguf.file));
  place_tensors(gguf, infos, r.position());
  return gguf;
}

namespace {

bool is_integer(GgufType type) {
  return type <= GgufType::I32 || type == GgufType::U64 || type == GgufType::I64;
}

// A U64 above the range of int64 becomes negative: callers refuse it.
int64_t integer_at(GgufType type, const uint8_t* at) {
  switch (type) {
    case GgufType::U8: return load_unaligned<uint8_t>(at);
    case GgufType::I8: return load_unaligned<int8_t>(at);
    case GgufType::U16: return load_unaligned<uint16_t>(at);
    case GgufType::I16: return load_unaligned<int16_t>(at);
    case GgufType::U32: return load_unaligned<uint32_t>(at);
    case GgufType::I32: return load_unaligned<int32_t>(at);
    default: return load_unaligned<int64_t>(at);
  }
}

const GgufValue* find(const GgufFile& gguf, std::string_view key) {
  const auto it = gguf.metadata.find(key);
  return it == gguf.metadata.end() ? nullptr : &it->second;
}

[[noreturn]] void wrong_type(const GgufFile& gguf, std::string_view key, const GgufValue& value,
                             const char* expected) {
  bad_model(gguf.file.name, key,
            value.type == GgufType::ARRAY ? "an array of " + name_of(value.element)
                                          : "a value of type " + name_of(value.type),
            expected);
}

}  // namespace

std::optional<uint64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (!is_integer(value->type)) wrong_type(*this, key, *value, "an integer");
  const int64_t n = integer_at(value->type, value->data);
  if (n < 0) {
    bad_model(
        file.name, key,
        value->type == GgufType::U64 ? std::to_string(static_cast<uint64_t>(n)) : std::to_string(n),
        "0 to 2^63-1");
  }
  return n;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type == GgufType::F32) return load_unaligned<float>(value->data);
  if (value->type == GgufType::F64) return load_unaligned<double>(value->data);
  if (!is_integer(value->type)) wrong_type(*this, key, *value, "a number");
  return static_cast<double>(*integer(key));
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::BOOL) wrong_type(*this, key, *value, "a BOOL");
  return *value->data != 0;
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::STRING) wrong_type(*this, key, *value, "a STRING");
  return std::string_view(reinterpret_cast<const char*>(value->data), value->bytes);
}

std::optional<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::ARRAY || value->element != GgufType::STRING) {
    wrong_type(*this, key, *value, "an array of STRING");
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);
  const uint8_t* at = value->data;  // checked by skip_elements
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto bytes = load_unaligned<uint64_t>(at);
    out.emplace_back(reinterpret_cast<const char*>(at + 8), bytes);
    at += 8 + bytes;
  }
  return out;
}

std::optional<std::vector<float>> GgufFile::floats(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::ARRAY || value->element != GgufType::F32) {
    wrong_type(*this, key, *value, "an array of F32");
  }
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->data, 4 * out.size());
  return out;
}

std::optional<std::vector<int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->type != GgufType::ARRAY || !is_integer(value->element)) {
    wrong_type(*this, key, *value, "an array of integers");
  }
  std::vector<int64_t> out(value->count);
  const uint64_t step = scalar_bytes(value->element);
  for (uint64_t i = 0; i < value->count; ++i) {
    out[i] = integer_at(value->element, value->data + i * step);
    if (value->element == GgufType::U64 && out[i] < 0)
      bad_model(file.name, key, "a value above 2^63", "0 to 2^63-1");
  }
  return out;
}

}  // namespace riffle
