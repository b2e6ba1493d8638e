// Fields of a body that constrain an answer: OpenAI's response_format, vLLM's guided_* and
// structured_outputs, llama.cpp's grammar and json_schema.
#pragma once
#include <string>

#include "requests/json_body.h"

namespace riffle::requests {

// Reads one of these fields, given with its path. Sets request.grammar, unless the value asks for
// no constraint. Throws Refused, also if another field has set it.
void read_answer_format(const Fields& f, const std::string& field, const Json& value,
                        Request& request);

}  // namespace riffle::requests
