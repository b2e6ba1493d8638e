// One line of a batch file: OpenAI's batch format, checked field by field. Lines are untrusted.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

struct BatchRequest {
  std::string custom_id;
  bool chat = false;  // messages, not prompt
  std::string prompt;
  std::vector<Message> messages;
  std::string model;  // as asked for; echoed, not acted upon
  int32_t max_tokens = -1;
  riffle_sampling sampling{};
  std::vector<std::string> stop;
};

// Why a line cannot be answered. code: bad_json, bad_utf8, too_deep, line_too_long, missing_id, dup_id, bad_request,
// too_long, empty_prompt, bad_text, oom, no_slot, error.
struct BatchError {
  std::string code, message;
  std::string custom_id;  // "" if not known
};

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr int kMaxNesting = 32;  // a valid request needs 5

// Parses a line. defaults: what the flags say, for fields the line leaves out. Throws BatchError; messages begin
// "line N: ".
BatchRequest parse_batch_line(std::string_view line, size_t line_number, const CommonOptions& defaults);

// Output records.
Json batch_error_record(size_t line_number, const BatchError& error);
Json batch_answer_record(size_t line_number, const BatchRequest& request, const std::string& model_name,
                         const std::string& text, const riffle_result& result, size_t prompt_tokens,
                         const riffle_stats& stats);

// Offset of the first byte that is not valid UTF-8, or npos.
size_t find_bad_utf8(std::string_view text);

}  // namespace riffle::cli
