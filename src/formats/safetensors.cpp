#include "formats/safetensors.h"

#include <algorithm>

#include "util/json_file.h"

namespace riffle {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxTensors = 100'000;
constexpr size_t kMaxDims = 8;

struct TypeInfo {
  const char* name;
  unsigned bits;
  int dtype;  // DType, or -1
};
constexpr TypeInfo kTypes[] = {
    {"F32", 32, static_cast<int>(DType::F32)},
    {"F16", 16, static_cast<int>(DType::F16)},
    {"BF16", 16, static_cast<int>(DType::BF16)},
    {"F64", 64, -1},
    {"I64", 64, -1},
    {"U64", 64, -1},
    {"C64", 64, -1},
    {"I32", 32, -1},
    {"U32", 32, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"I8", 8, -1},
    {"U8", 8, -1},
    {"BOOL", 8, -1},
    {"F8_E4M3", 8, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"F4", 4, -1},
};

struct Entry {
  std::string name;
  RawTensor raw;
  uint64_t begin = 0, end = 0;  // from the beginning of the data
};

const Json& member(const FileView& file, const Json& object, const std::string& field,
                   const char* key) {
  const Json* const value = object.find(key);
  if (!value) bad_model(file.name, field + " " + key, "none", "a value");
  return *value;
}

uint64_t whole_number(const FileView& file, const Json& value, const std::string& field) {
  if (!value.is_unsigned()) bad_model(file.name, field, shown(value), "a whole number from 0");
  return value.whole();
}

Entry read_entry(const FileView& file, const std::string& name, const Json& object) {
  Entry entry;
  entry.name = name;
  const std::string field = "tensor " + printable(name);
  if (!object.is_object())
    bad_model(file.name, field, std::string("JSON of type ") + object.type_name(), "an object");

  const Json& dtype = member(file, object, field, "dtype");
  const TypeInfo* type = nullptr;
  for (const TypeInfo& t : kTypes) {
    if (dtype.equals(std::string_view(t.name))) type = &t;
  }
  if (!type)
    bad_model(file.name, field + " dtype", shown(dtype), "a type of safetensors, such as \"BF16\"");
  entry.raw.file = file.name;
  entry.raw.type_name = type->name;
  if (type->dtype >= 0) entry.raw.type = static_cast<DType>(type->dtype);

  const Json& shape = member(file, object, field, "shape");
  if (!shape.is_array() || shape.size() > kMaxDims) {
    bad_model(file.name, field + " shape",
              shape.is_array() ? std::to_string(shape.size()) + " dimensions" : "no array",
              "an array of at most 8");
  }
  uint64_t bits = type->bits;
  for (const Json& n : shape.elements()) {
    entry.raw.shape.push_back(whole_number(file, n, field + " shape"));
    if (entry.raw.shape.back() == 0)
      bad_model(file.name, field + " shape", "a dimension of 0", "1 or more");
    if (!checked_mul(bits, entry.raw.shape.back(), &bits)) {
      bad_model(file.name, field + " shape", "more than 2^64 bits", "a tensor that fits the file");
    }
  }
  if (bits % 8 != 0)
    bad_model(file.name, field + " shape", std::to_string(bits) + " bits", "whole bytes");
  entry.raw.bytes = bits / 8;

  const Json& offsets = member(file, object, field, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    bad_model(file.name, field + " data_offsets", shown(offsets), "[begin, end]");
  }
  entry.begin = whole_number(file, offsets[0], field + " data_offsets");
  entry.end = whole_number(file, offsets[1], field + " data_offsets");
  if (entry.begin > entry.end || entry.end - entry.begin != entry.raw.bytes) {
    bad_model(file.name, field + " data_offsets",
              "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]",
              std::to_string(entry.raw.bytes) + " bytes for " + type->name + " " +
                  shape_text(entry.raw.shape));
  }
  return entry;
}

}  // namespace

void parse_safetensors(const FileView& file, TensorTable& table) {
  refuse_lfs_pointer(file.name, file.text());
  if (file.size < 8)
    bad_model(file.name, "file size", std::to_string(file.size) + " bytes", "8 or more");
  const auto header_bytes = load_unaligned<uint64_t>(file.data);
  if (header_bytes > kMaxHeaderBytes) {
    bad_model(file.name, "header length", std::to_string(header_bytes),
              "at most " + std::to_string(kMaxHeaderBytes));
  }
  if (!inside(8, header_bytes, file.size)) {
    bad_model(file.name, "header length", std::to_string(header_bytes),
              "at most " + std::to_string(file.size - 8) + ", the bytes that the file has left");
  }
  const Json header = parse_json_object(file, file.text().substr(8, header_bytes), "header");
  const uint8_t* data = file.data + 8 + header_bytes;
  const uint64_t data_bytes = file.size - 8 - header_bytes;
  if (header.size() > kMaxTensors + 1) {
    bad_model(file.name, "header", std::to_string(header.size()) + " tensors",
              "at most " + std::to_string(kMaxTensors));
  }

  std::vector<Entry> entries;
  for (const auto& [name, object] : header.members()) {
    if (name != "__metadata__") entries.push_back(read_entry(file, name, object));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  uint64_t taken = 0;
  for (Entry& entry : entries) {
    const std::string field = "tensor " + printable(entry.name) + " data_offsets";
    const std::string found =
        "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
    if (!inside(entry.begin, entry.raw.bytes, data_bytes)) {
      bad_model(file.name, field, found,
                "both inside the " + std::to_string(data_bytes) + " bytes of data");
    }
    if (entry.begin != taken) {
      bad_model(file.name, field, found,
                "to begin at " + std::to_string(taken) + ", where the tensor before ends");
    }
    taken = entry.end;
    entry.raw.data = data + entry.begin;
    const auto [it, is_new] = table.emplace(entry.name, std::move(entry.raw));
    if (!is_new)
      bad_model(file.name, "tensor " + entry.name, "a name that is in " + it->second.file + " too",
                "once");
  }
  if (taken != data_bytes) {
    bad_model(file.name, "file size", std::to_string(data_bytes) + " bytes of data",
              std::to_string(taken) + ", where the last tensor ends");
  }
}

}  // namespace riffle
