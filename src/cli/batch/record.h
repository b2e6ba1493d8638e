// The records of riffle batch, in OpenAI's format. Each holds the number of its line ("line"), by
// which a resumed run finds it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/batch/format.h"

namespace riffle::cli {

// Beginnings of records, by which a piece of a record is recognised; earlier versions of riffle
// wrote the second.
constexpr std::string_view kRecordBegins[] = {"{\"id\":\"batch_req_", "{\"id\":\"line-"};

// A token of an answer, with its log-probability and those of the most probable tokens in its
// place.
struct TokenLogprobs {
  int32_t token;
  float logprob;
  std::vector<riffle_logprob> top;
};

// One answer of a line: an answer to one of its prompts.
struct BatchChoice {
  std::string text, reasoning;          // reasoning: "": none
  std::vector<TokenLogprobs> logprobs;  // if asked for; also of the reasoning's tokens
  Facts end;                            // facts of riffle_request_end_fn
};

// Makes the record of a failed line. Ids of records are random and differ in all files. Call this
// just before the record is written: "created" is the current time.
std::string batch_error_record(size_t line_number, const BatchError& error);
// Makes the record of an answered line. by: the model that answers, even if the line asked for
// another one. Requires: at least one choice.
std::string batch_answer_record(size_t line_number, const BatchRequest& request,
                                riffle_model* model, const AnsweringModel& by,
                                std::span<const BatchChoice> choices);

}  // namespace riffle::cli
