// The records of riffle batch, in OpenAI's format. Each holds the number of its line ("line"), by
// which a resumed run knows it again.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "cli/batch/format.h"

namespace riffle::cli {

// What every record begins with, so that a piece of one can be told from other text; earlier
// versions of riffle wrote the second.
constexpr std::string_view kRecordBegins[] = {"{\"id\":\"batch_req_", "{\"id\":\"line-"};

// One answer of a line: the answer to one of its prompts.
struct BatchChoice {
  std::string text, reasoning;  // reasoning: "": none
  riffle_request_end end{};
};

// The ids of records are random: no other record has them, in this file or another. A record is
// made by the time it is written: "created" is that time.
std::string batch_error_record(size_t line_number, const BatchError& error);
// model_name: of the model that answers, whatever the line asked for. At least one choice.
std::string batch_answer_record(size_t line_number, const BatchRequest& request,
                                const std::string& model_name,
                                std::span<const BatchChoice> choices);

}  // namespace riffle::cli
