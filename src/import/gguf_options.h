// Options of a GGUF file that riffle does not know: a file may hold any option, and an option may
// change the results.
#pragma once
#include "formats/gguf.h"

namespace riffle {

struct Family;

// Refuses (RIFFLE_UNSUPPORTED, naming the key) unknown keys below the family's name and below
// "tokenizer.ggml.". A key is accepted if the family reads it, if it changes nothing that riffle
// does, or if its value changes nothing: 0 or false (writers mean "not set"), or 1 for a factor.
void refuse_unknown_options(const GgufFile& gguf, const Family& family);

}  // namespace riffle
