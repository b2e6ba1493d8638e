// GGUF files in parts, as gguf-split of ggml writes them: NAME-00001-of-00003.gguf and so on. The
// first part has the metadata. Each part has its number (split.no, from 0), the number of parts
// (split.count) and the number of tensors in all parts (split.tensors.count).
#pragma once
#include <memory>
#include <vector>

#include "formats/gguf.h"
#include "util/mapped_file.h"

namespace riffle {

struct GgufParts {
  std::vector<std::shared_ptr<MappedFile>> files;
  GgufFile gguf;  // the first part's metadata, with the tensors of all parts
};

// Returns the path of the only GGUF file in a folder; for a split file, of its first part. Returns
// path itself if it is no folder, is a Hugging Face folder, or holds no GGUF file. Throws
// RIFFLE_IO, naming the files, if the folder holds several.
std::string gguf_of_folder(const std::string& path);
// path: a whole file, or any part. Throws RIFFLE_IO, RIFFLE_BAD_MODEL, RIFFLE_UNSUPPORTED.
GgufParts open_gguf(const std::string& path);

// Returns the number of parts; 1: not split. Throws RIFFLE_BAD_MODEL.
uint64_t split_count(const GgufFile& gguf);
// Returns the names of all parts, given the path of part `no`. Throws RIFFLE_BAD_MODEL if the path
// does not end as that part's must.
std::vector<std::string> part_names(const std::string& path, uint64_t no, uint64_t count);
// Joins parts, at least one and in order, into one file. Throws RIFFLE_BAD_MODEL.
GgufFile join_parts(std::vector<GgufFile> parts);

}  // namespace riffle
