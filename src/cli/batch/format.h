// One line of a batch file (OpenAI's batch format) as a request, and one record of its output.
// Lines and records are untrusted. riffle_request.h reads the lines; writing: record.h.
#pragma once
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "cli/conversation.h"

namespace riffle::cli {

struct BatchRequest {
  std::string custom_id;
  RequestHandle handle;
  Facts info;  // facts of riffle_request_create
};

// Values of the flags, for fields that a line leaves out.
struct BatchDefaults {
  Options options;
  bool ignore_unknown = false;   // fields that riffle does not know
  std::optional<uint64_t> seed;  // line N gets riffle_derived_seed(seed, N); none: a random one
};

// The reason why a line cannot be answered. Every step of a line throws it; failure_of catches it.
// code: bad_json, bad_utf8, too_deep, too_many_values, line_too_long, missing_id, dup_id,
// bad_request, too_long, empty_prompt, bad_text, oom, no_slot, error.
struct BatchError {
  std::string code, message;
  std::string custom_id;  // "" if not known
};

constexpr size_t kMaxLineBytes = size_t{64} << 20;

// Runs one step of a line: reading, parsing, tokenising or submitting it. Returns the error, or
// nothing. All that the step throws about its line (BatchError, Exit, std::bad_alloc) becomes a
// BatchError here and nowhere else. custom_id is read only after the step has failed, since the
// step may set it.
template <typename Step>
std::optional<BatchError> failure_of(size_t line_number, const std::string& custom_id, Step step) {
  try {
    step();
    return std::nullopt;
  } catch (BatchError& e) {
    return std::move(e);
  } catch (const Exit& e) {
    return BatchError{e.code() == EXIT_MEMORY ? "oom" : "bad_request",
                      text_of("line %zu: %s", line_number, e.what()), custom_id};
  } catch (const std::bad_alloc&) {
    return BatchError{"oom", text_of("line %zu: out of memory", line_number), custom_id};
  }
}

// Returns the error of a line whose request has been refused. Its message begins "line N: ".
BatchError refusal_of(const riffle_request* request, size_t line_number);

// Parses a line. Throws BatchError.
BatchRequest parse_batch_line(std::string_view line, size_t line_number,
                              const BatchDefaults& defaults);

// The model that answers, as records name it.
struct AnsweringModel {
  std::string name;
  // riffle_context_fingerprint as text, which tells weights of one name apart; "": none, as in
  // records of earlier versions of riffle.
  std::string fingerprint;
};

// The part of a record that a resumed run needs.
struct RecordHead {
  size_t line = 0;
  std::string custom_id;  // "" if it has none
  bool failed = false;
  AnsweringModel model;  // no name: the record names none
};
// Parses the head of a record. Throws std::runtime_error with the reason.
RecordHead parse_record(std::string_view record);

}  // namespace riffle::cli
