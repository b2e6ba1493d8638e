// Errors for paths given with -m that are not models for riffle.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "cli/text.h"
#include "cli/text_file.h"

namespace riffle::cli {
namespace fs = std::filesystem;

namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Returns "PATH: found WHAT, expected a GGUF file or a Hugging Face folder; ADVICE".
std::string complaint(const std::string& path, const std::string& what, const std::string& advice) {
  return path + ": found " + what + ", expected " + kModelFormats +
         (advice.empty() ? "" : "; " + advice);
}

bool is_text(const std::string& bytes) {
  return !bytes.empty() && std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f';
  });
}

// Returns the error for a name that is not an existing file.
std::string wrong_name(const std::string& name) {
  const std::string small = lower(name);
  const bool url = small.starts_with("http://") || small.starts_with("https://");
  std::string rest = url ? name.substr(name.find("//") + 2) : name;
  bool hub = false;
  for (const char* host : {"hf.co/", "huggingface.co/", "www.huggingface.co/"})
    if (lower(rest).starts_with(host)) {
      rest.erase(0, std::string(host).size());
      hub = true;
    }
  const bool file =
      lower(rest).find(".gguf") != rest.npos || lower(rest).find(".safetensors") != rest.npos;
  if (url && (!hub || file))
    return complaint(name, "a URL",
                     "riffle downloads nothing: fetch the file with curl -LO " + name +
                         ", then give it with -m FILE");
  const size_t colon = rest.find(':');
  const std::string repository = rest.substr(0, colon),
                    tag = colon == rest.npos ? "" : rest.substr(colon + 1);
  const auto slashes = std::count(repository.begin(), repository.end(), '/');
  const bool relative = !repository.starts_with("/") && !repository.starts_with(".") &&
                        !repository.starts_with("~") && !repository.ends_with("/");
  // In an existing folder, the user means a file, not a repository.
  std::error_code error;
  const bool below = slashes == 1 && fs::is_directory(name.substr(0, name.find('/')), error);
  if (hub || (relative && slashes == 1 && !file && !below))
    return complaint(name, "no such file (it may be the name of a repository)",
                     "riffle downloads nothing: fetch it with hf download " + repository +
                         " --include '*" + (tag.empty() ? "" : tag + "*") + ".gguf' --local-dir .");
  if (relative && slashes == 0 && !tag.empty())
    return complaint(name, "no such file (it may be the name of an Ollama model)",
                     "ollama show --modelfile " + name +
                         " prints the path of its file after "
                         "FROM; give that path with -m");
  return "";
}

std::string wrong_folder(const std::string& path) {
  std::error_code error;
  bool config = false, weights = false, pickle = false, any = false;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string(),
                      extension = lower(at->path().extension().string());
    any = true;
    config = config || name == "config.json";
    weights = weights || extension == ".safetensors" || extension == ".gguf";
    pickle = pickle || ((extension == ".bin" || extension == ".pth" || extension == ".pt"));
  }
  if (error || weights) return "";
  if (pickle)
    return complaint(path, "a folder with PyTorch weights",
                     "convert_hf_to_gguf.py of llama.cpp converts it");
  return complaint(path,
                   config ? "a folder with a config.json but no weights (.safetensors)"
                   : any  ? "a folder with neither a .gguf file nor a config.json"
                          : "an empty folder",
                   "");
}

std::string wrong_content(const std::string& path) {
  const std::string begin = beginning_of(path, 4096);
  const std::string extension = lower(fs::path(path).extension().string());
  const auto is = [&](std::string_view magic) { return begin.starts_with(magic); };
  if (begin.empty() || is("GGUF") || is_lfs_pointer(begin)) return "";
  const bool torch_name =
      extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt";
  const char* const convert = "convert_hf_to_gguf.py of llama.cpp converts a model to GGUF";
  if (is("%PDF-"))
    return complaint(path, "a PDF document",
                     "convert it to text with pdftotext, and give the text with -f FILE");
  if (is("PK\x03\x04") && (torch_name || begin.find("data.pkl") != begin.npos))
    return complaint(path, "a PyTorch checkpoint", convert);
  if (is("PK\x03\x04")) return complaint(path, "a ZIP archive", "unzip it first");
  if (is("\x1F\x8B") || is("\x28\xB5\x2F\xFD") || is("BZh") ||
      is("\xFD"
         "7zXZ"))
    return complaint(path, "a compressed file", "unpack it first");
  if (begin.size() > 1 && begin[0] == '\x80' && begin[1] >= 2 && begin[1] <= 5)
    return complaint(path, "a Python pickle, such as an older PyTorch checkpoint", convert);
  if (extension == ".onnx") return complaint(path, "an ONNX model", convert);
  if (is("\x89HDF")) return complaint(path, "an HDF5 file", convert);
  for (const char* magic : {"lmgg", "fmgg", "tjgg", "algg"})  // GGML, GGMF, GGJT, GGLA
    if (is(magic))
      return complaint(path, "a file of llama.cpp from before GGUF", "get the model as GGUF");
  const bool json = begin.find_first_not_of(" \t\r\n") != begin.npos &&
                    begin[begin.find_first_not_of(" \t\r\n")] == '{';
  if (json && is_text(begin))
    return complaint(path, "a JSON file", "for a Hugging Face model, give the folder");
  if (is_text(begin))
    return complaint(path, "a text file", "give a text with -f FILE, and the model with -m");
  return "";
}

}  // namespace

std::string wrong_model(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return wrong_name(path);
  if (fs::is_directory(status)) return wrong_folder(path);
  return fs::is_regular_file(status) ? wrong_content(path) : "";
}

}  // namespace riffle::cli
