// Reading a safetensors file (huggingface/safetensors, README "Format"): 8 bytes of header length,
// a JSON header, the data. Works on memory; touches no file system.
#pragma once
#include "formats/raw_tensor.h"
#include "util/checked.h"

namespace riffle {

// Adds the file's tensors to table; the views point into file. The tensors must fill the data
// without holes and overlaps, as the format demands. Throws RIFFLE_BAD_MODEL. Types that riffle
// lacks are listed, not refused.
void parse_safetensors(const FileView& file, TensorTable& table);

}  // namespace riffle
