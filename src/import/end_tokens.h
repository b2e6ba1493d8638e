// Tokens that end answers, as the readers of both formats know them.
#pragma once
#include <cstddef>
#include <string_view>

#include "model/model.h"

namespace riffle {

// Names of control tokens that end answers even if no key of the file names them.
inline constexpr std::string_view kEndTokenNames[] = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>",
    "<|return|>", "<|call|>",   "<turn|>",    "<|tool_response>"};
bool is_end_token_name(std::string_view text);
// The most tokens that end answers, and the most ids in one list of a file: more than any model
// has, but few enough that lists stay short.
inline constexpr size_t kMaxTokenIds = 256;

// Adds id to eos_ids, once; -1 is none.
void add_end_token(int id, Config* config);

}  // namespace riffle
