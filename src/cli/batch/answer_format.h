// Fields of a body that constrain an answer: OpenAI's response_format, vLLM's guided_* and
// structured_outputs, llama.cpp's grammar and json_schema.
#pragma once
#include <string>

#include "cli/batch/json_line.h"

namespace riffle::cli {

// Reads one of these fields, given with its path. Sets request.grammar, unless the value asks for
// no constraint. Throws BatchError, also if another field has set it.
void read_answer_format(const Fields& f, const std::string& field, const JsonIn& value,
                        BatchRequest& request);

}  // namespace riffle::cli
