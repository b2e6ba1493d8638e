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

// Makes the record of a failed line. Ids of records are random and differ in all files. Call this
// just before the record is written: "created" is the current time.
std::string batch_error_record(size_t line_number, const BatchError& error);
// Makes the record of an answered line. by: the model that answers, even if the line asked for
// another one. ends: the facts of riffle_request_end_fn of each answer. Requires: at least one.
// Throws Exit.
std::string batch_answer_record(size_t line_number, BatchRequest& request, uint64_t seed,
                                const AnsweringModel& by, std::span<const Facts> ends);

}  // namespace riffle::cli
