// The records of riffle batch, in OpenAI's format. Each holds the number of its line ("line"), by
// which a resumed run knows it again.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/batch/format.h"

namespace riffle::cli {

// Beginnings of records, which tell a piece of one from other text; earlier versions of riffle
// wrote the second.
constexpr std::string_view kRecordBegins[] = {"{\"id\":\"batch_req_", "{\"id\":\"line-"};

// A token of an answer with its log-probability and those of the most probable tokens there.
struct TokenLogprobs {
  int32_t token;
  float logprob;
  std::vector<riffle_logprob> top;
};

// One answer of a line: an answer to one of its prompts.
struct BatchChoice {
  std::string text, reasoning;          // reasoning: "": none
  std::vector<TokenLogprobs> logprobs;  // if the line asks for them; also of the reasoning's tokens
  Facts end;                            // riffle_request_end_fn
};

// The ids of records are random: no other record has them, in this file or another. A record is
// made by the time it is written: "created" is that time.
std::string batch_error_record(size_t line_number, const BatchError& error);
// model_name: of the model that answers, even if the line asked for another one. At least one
// choice.
std::string batch_answer_record(size_t line_number, const BatchRequest& request,
                                riffle_model* model, const std::string& model_name,
                                std::span<const BatchChoice> choices);

}  // namespace riffle::cli
