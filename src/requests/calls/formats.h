// The formats in which models write calls: a parser and a grammar for each, and the table by which
// a model's format is found.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "requests/calls/call_parser.h"

namespace riffle::requests {

struct CallFormat {
  const char* name;
  // Alternatives. A template has this format if it contains all texts of one alternative.
  std::vector<std::vector<std::string_view>> signs;
  // Texts that may be control tokens. One that begins with grammar::kOnlyControl always is.
  std::vector<std::string_view> markers;
  // Null: the calls are messages with headers, which ReasoningSplit reads (gpt-oss).
  std::unique_ptr<CallParser> (*parser)(const ToolUse& tools);
  // Makes the text behind one trigger: a call of one of the tools, or several of them if the format
  // has lists. Throws RIFFLE_UNSUPPORTED with the place of what cannot be expressed.
  grammar::ExprId (*grammar)(std::span<const Tool* const> tools, bool several,
                             grammar::Expressions* e);
  std::string_view trigger;  // the text that begins a call and nothing else; "": none
  std::string_view between;  // between a call and the next trigger
  bool repeats;              // several triggers may follow each other
  // For formats without a trigger: makes the grammar of whole answers, with or without calls. text:
  // the grammar of an answer without a call; Expressions::kNever: any text.
  grammar::ExprId (*answers)(std::span<const Tool* const> tools, bool several, grammar::ExprId text,
                             grammar::Expressions* e) = nullptr;
};

// Returns the format of a chat template's text; null: riffle knows none.
const CallFormat* call_format(std::string_view chat_template);

// The parsers, a file for each: tag_calls.cpp (Hermes' and Qwen's JSON, Qwen3-Coder's XML, GLM's),
// llama_calls.cpp, mistral_calls.cpp, gemma_calls.cpp, lfm_calls.cpp.
std::unique_ptr<CallParser> tag_calls(const ToolUse& tools);
std::unique_ptr<CallParser> llama_calls(const ToolUse& tools);
std::unique_ptr<CallParser> mistral_calls(const ToolUse& tools);
std::unique_ptr<CallParser> gemma_calls(const ToolUse& tools);
std::unique_ptr<CallParser> lfm_calls(const ToolUse& tools);

}  // namespace riffle::requests
