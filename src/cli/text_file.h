// Files that users name: those that are read, and those that are refused.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace riffle::cli {

// The longest text that riffle reads. No context holds the tokens of more.
inline constexpr size_t kMostText = size_t{1} << 30;
// Throws Exit(EXIT_RUN) if the text is longer.
void check_text_size(const std::string& name, size_t n);

// A user's message cannot hold a NUL byte. Throws Exit(EXIT_RUN), which names its offset.
void check_no_nul(const std::string& name, std::string_view text);

// Returns whether a text is the few lines that a clone without Git LFS has in a file's place.
bool is_lfs_pointer(std::string_view text);
// "NAME: found a Git LFS pointer, expected the file itself; run 'git lfs pull' ..."
std::string lfs_complaint(const std::string& name);

// The first bytes of a regular file, at most n; "" if it is none or cannot be read.
std::string beginning_of(const std::string& path, size_t n);

// Returns the target if path is a link, even if the target does not exist; else path. "" for links
// that cannot be followed.
std::filesystem::path link_target(std::filesystem::path path);

// Returns a one-line error for a path given with -m that is no model for riffle. The error names
// the kind of the path and the thing to give instead. "": nothing is known about the path.
std::string wrong_model(const std::string& path);

}  // namespace riffle::cli
