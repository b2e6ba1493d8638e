// Options of a GGUF file that riffle does not know: a file may say anything, and what it says may
// change the results.
#pragma once
#include "model/formats/gguf.h"

namespace riffle {

struct Family;

// Refuses (RIFFLE_UNSUPPORTED, naming the key) what metadata says below the family's name and below
// tokenizer.ggml. unless the family reads the key, or it changes nothing that riffle does, or its
// value is the one that changes nothing: 0 or false (how writers say "not set"), 1 for what
// multiplies.
void refuse_unknown_options(const GgufFile& gguf, const Family& family);

}  // namespace riffle
