// One line of a batch file (OpenAI's batch format) as a request, and one record of its output.
// Lines and records are untrusted. Reading: json_line.h (JSON), fields.h (a table of all fields),
// messages.h. Writing: record.h.
#pragma once
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

// Names of the fields of lines that riffle does not read, each once.
struct IgnoredFields {
  std::vector<std::string> without_effect;  // no answer depends on them
  std::vector<std::string> unknown;         // riffle does not know them (--ignore-unknown)
};
constexpr size_t kMaxIgnoredNames = 32;  // names of each kind that are kept

struct BatchPrompt {
  std::string text;
  std::vector<int32_t> tokens;  // instead of text
};

// The grammar of an answer. field: the field that asks for it, with its path.
struct BatchGrammar {
  riffle_grammar_kind kind;
  std::string text, field;
};

struct BatchRequest {
  std::string custom_id;
  bool chat = false;                 // messages, not prompts
  std::vector<BatchPrompt> prompts;  // the answer has `n` choices for each
  std::vector<Message> messages;
  size_t n = 1;
  Options answer;  // options of its answers
  Thinking thinking;
  // True if the line itself sets a level of reasoning, and if it turns reasoning on or off.
  bool asks_effort = false, asks_thinking = false;
  std::optional<BatchGrammar> grammar;
  IgnoredFields ignored;
};

// Values of the flags, for fields that a line leaves out.
struct BatchDefaults {
  Options answer;
  Thinking thinking;
  bool ignore_unknown = false;   // fields that riffle does not know
  std::optional<uint64_t> seed;  // line N gets derived_seed(seed, N); none: a random one
};

// The reason why a line cannot be answered. Every step of a line throws it; failure_of catches it.
// code: bad_json, bad_utf8, too_deep, too_many_values, line_too_long, missing_id, dup_id,
// bad_request, too_long, empty_prompt, bad_text, oom, no_slot, error.
struct BatchError {
  std::string code, message;
  std::string custom_id;  // "" if not known
};

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr size_t kMaxNameBytes =
    1024;                             // bytes of custom_id (which the record repeats) and of model
constexpr size_t kMaxPrompts = 4096;  // in a line
constexpr size_t kMaxChoices = 128;   // answers to a prompt
constexpr int kMaxNesting = 128;      // a request needs 5, and the depth of its schema
constexpr size_t kMaxValues =
    1000000;  // values and keys in a line: parsed, a line of nothing but [] takes 20 times its size

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

// Parses a line. Throws BatchError, whose message begins "line N: ".
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
