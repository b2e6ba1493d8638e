#include "formats/gguf_split.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>

#include "util/error.h"

namespace riffle {

namespace {

constexpr uint64_t kMaxParts = 10'000;

uint64_t required(const GgufFile& gguf, const char* key) {
  const auto value = gguf.integer(key);
  if (!value) bad_model(gguf.file.name, key, "none", "a number, as in every part of a split file");
  return *value;
}

uint64_t part_number(const GgufFile& gguf, uint64_t count) {
  const uint64_t no = required(gguf, "split.no");
  if (no >= count)
    bad_model(gguf.file.name, "split.no", std::to_string(no),
              "below split.count = " + std::to_string(count));
  return no;
}

std::string suffix(uint64_t no, uint64_t count) {
  return format("-%05llu-of-%05llu.gguf", static_cast<unsigned long long>(no + 1),
                static_cast<unsigned long long>(count));
}

// Parts of different models may have matching names, so the first part must have all metadata of
// another part, with the same values.
void check_same_model(const GgufFile& first, const GgufFile& part) {
  for (const auto& [key, value] : part.metadata) {
    if (key.starts_with("split.")) continue;
    const auto it = first.metadata.find(key);
    if (it == first.metadata.end())
      bad_model(part.file.name, key, "it here", "it in the first part as well, " + first.file.name);
    const GgufValue& other = it->second;
    if (value.type != other.type || value.element != other.element || value.bytes != other.bytes ||
        std::memcmp(value.data, other.data, value.bytes) != 0) {
      bad_model(part.file.name, key, "another value", "that of the first part, " + first.file.name);
    }
  }
}

// "NAME-00002-of-00003.gguf" and so on.
bool is_later_part(const std::string& name) {
  const size_t of = name.rfind("-of-");
  return of != name.npos && of >= 6 && name[of - 6] == '-' && name.substr(of - 5, 5) != "00001";
}

}  // namespace

std::string gguf_of_folder(const std::string& path) {
  if (!is_folder(path)) return path;
  const std::string folder = path.ends_with('/') ? path : path + "/";
  // POSIX's own calls: std::filesystem ends the process if memory for a path runs out, and its
  // messages follow the locale.
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(path.c_str()), closedir);
  if (!entries && errno == ENOMEM) throw std::bad_alloc();
  std::vector<std::string> files;
  bool config = false, safetensors = false;
  while (const dirent* const entry = entries ? readdir(entries.get()) : nullptr) {
    const std::string name = entry->d_name;
    config |= name == "config.json";
    safetensors |= name.ends_with(".safetensors");
    if (name.ends_with(".gguf") && !is_later_part(name) && !is_folder(folder + name))
      files.push_back(name);
  }
  if (files.empty() || (config && safetensors)) return path;
  if (files.size() == 1) return folder + files[0];
  std::sort(files.begin(), files.end());
  std::string names;
  for (const std::string& name : files) names += (names.empty() ? "" : ", ") + name;
  throw Error(RIFFLE_IO,
              format("%s: the folder holds %zu models (%s), expected one: give the path of a file",
                     path.c_str(), files.size(), names.c_str()));
}

uint64_t split_count(const GgufFile& gguf) {
  const uint64_t count = gguf.integer("split.count").value_or(1);
  if (count > kMaxParts)
    bad_model(gguf.file.name, "split.count", std::to_string(count),
              "at most " + std::to_string(kMaxParts));
  return count > 1 ? count : 1;
}

std::vector<std::string> part_names(const std::string& path, uint64_t no, uint64_t count) {
  const std::string own = suffix(no, count);
  if (!path.ends_with(own)) {
    bad_model(path, "file name", path.substr(path.rfind('/') + 1),
              "a name that ends with " + own + ", as split.no and split.count say");
  }
  const std::string stem = path.substr(0, path.size() - own.size());
  std::vector<std::string> names;
  for (uint64_t i = 0; i < count; ++i) names.push_back(stem + suffix(i, count));
  return names;
}

GgufFile join_parts(std::vector<GgufFile> parts) {
  GgufFile whole = std::move(parts.front());
  const uint64_t count = parts.size();
  const uint64_t n_tensors = required(whole, "split.tensors.count");
  for (uint64_t i = 0; i < count; ++i) {
    GgufFile& part = i ? parts[i] : whole;
    const std::string& name = part.file.name;
    const auto same = [&](const char* key, uint64_t expected) {
      const uint64_t found = required(part, key);
      if (found != expected) bad_model(name, key, std::to_string(found), std::to_string(expected));
    };
    same("split.count", count);
    same("split.no", i);
    same("split.tensors.count", n_tensors);
    if (i == 0) continue;
    check_same_model(whole, part);
    for (auto& [tensor, raw] : part.tensors) {
      const auto [it, added] = whole.tensors.emplace(tensor, std::move(raw));
      if (!added)
        bad_model(name, "tensor " + tensor, "it here and in " + it->second.file, "it in one part");
    }
  }
  if (whole.tensors.size() != n_tensors) {
    bad_model(whole.file.name, "split.tensors.count", std::to_string(n_tensors),
              std::to_string(whole.tensors.size()) + ", as many as the " + std::to_string(count) +
                  " parts hold");
  }
  return whole;
}

GgufParts open_gguf(const std::string& path) {
  GgufParts out;
  out.files.push_back(MappedFile::open(path));
  GgufFile given = parse_gguf(out.files[0]->view());
  const uint64_t count = split_count(given);
  if (count == 1) {
    out.gguf = std::move(given);
    return out;
  }
  const std::vector<std::string> names = part_names(path, part_number(given, count), count);
  out.files.clear();
  std::vector<GgufFile> parts;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string part =
        "part " + std::to_string(i + 1) + " of " + std::to_string(count) + " of a split model";
    if (!file_exists(names[i]))
      throw Error(RIFFLE_IO, names[i] + ": no such file, expected " + part);
    out.files.push_back(MappedFile::open(names[i]));
    parts.push_back(parse_gguf(out.files.back()->view(), part + "; download the file again"));
  }
  out.gguf = join_parts(std::move(parts));
  return out;
}

}  // namespace riffle
