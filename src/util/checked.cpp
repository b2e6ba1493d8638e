#include "util/checked.h"

#include "util/error.h"

namespace riffle {

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : format("\\x%02x", byte);
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

// File names may be in any script: only control characters would break the line.
static std::string one_line(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

static std::string sentence(std::string_view file, std::string_view field, std::string_view found,
                            std::string_view expected) {
  return one_line(file) + ": " + (field.empty() ? "" : printable(field, 160) + ": ") + "found " +
         printable(found, 300) + ", expected " + printable(expected, 600);
}

void bad_model(std::string_view file, std::string_view field, std::string_view found,
               std::string_view expected) {
  throw Error(RIFFLE_BAD_MODEL, sentence(file, field, found, expected));
}

void refuse_lfs_pointer(std::string_view file, std::string_view text) {
  if (text.starts_with("version https://git-lfs."))
    throw Error(RIFFLE_BAD_MODEL, printable(file, 1000) +
                                      ": found a Git LFS pointer, expected the file itself; run "
                                      "'git lfs pull' in its folder");
}

void unsupported(std::string_view file, std::string_view field, std::string_view found,
                 std::string_view expected) {
  throw Error(RIFFLE_UNSUPPORTED, sentence(file, field, found, expected));
}

}  // namespace riffle
