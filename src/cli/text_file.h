// Reads files that users name, and refuses the wrong ones.
#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace riffle::cli {

// The longest text that riffle reads. No context holds the tokens of a longer one.
inline constexpr size_t kMostText = size_t{1} << 30;
// Throws Exit(EXIT_RUN) if a text of n bytes is longer.
void check_text_size(const std::string& name, size_t n);

// Throws Exit(EXIT_RUN), which names the offset, if the text has a NUL byte: messages cannot hold
// one.
void check_no_nul(const std::string& name, std::string_view text);

// Returns whether a text is the pointer that a clone without Git LFS has in place of a file.
bool is_lfs_pointer(std::string_view text);
// Returns "NAME: found a Git LFS pointer, expected the file itself; run 'git lfs pull' ...".
std::string lfs_complaint(const std::string& name);

// Returns the first n bytes of a regular file, or fewer; "" for other files and unreadable ones.
std::string beginning_of(const std::string& path, size_t n);

// Returns the target if path is a link, even if the target does not exist; else path. "" for links
// that cannot be followed.
std::filesystem::path link_target(std::filesystem::path path);

// The formats of models, as errors name them.
inline constexpr const char* kModelFormats = "a GGUF file or a Hugging Face folder";

// Returns a one-line error for a path given with -m that is not a model for riffle. The error names
// the kind of file found and what to give instead. "": riffle does not recognise it.
std::string wrong_model(const std::string& path);

}  // namespace riffle::cli
