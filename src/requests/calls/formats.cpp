#include "requests/calls/formats.h"

#include <algorithm>
#include <span>

#include "requests/calls/call_grammar.h"

namespace riffle::requests {
namespace {

// The first format whose signs a template has is the model's.
const std::vector<CallFormat>& formats() {
  static const std::vector<CallFormat> all = {
      {"gemma4",
       {{"<|tool_call>call:"}},
       {"<|tool_call>", "<tool_call|>", "<|\"|>"},
       gemma_calls,
       gemma_grammar,
       "<|tool_call>",
       "",
       false},
      {"harmony",
       {{"<|channel|>commentary", "functions."}},
       {"\xff<|start|>", "\xff<|channel|>", "\xff<|constrain|>", "\xff<|message|>", "\xff<|end|>"},
       nullptr,
       harmony_grammar,
       "",
       "",
       false,
       harmony_answers},
      {"glm",
       {{"<arg_key>", "<tool_call>"}},
       {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
       tag_calls,
       glm_grammar,
       "<tool_call>",
       "\n",
       true},
      {"xml",
       {{"<function=", "<tool_call>"}},
       {"<tool_call>", "</tool_call>"},
       tag_calls,
       xml_grammar,
       "<tool_call>",
       "\n",
       true},
      {"hermes",
       {{"<tool_call>"}},
       {"<tool_call>", "</tool_call>"},
       tag_calls,
       hermes_grammar,
       "<tool_call>",
       "\n",
       true},
      {"mistral",
       {{"[TOOL_CALLS]", "[ARGS]"}},
       {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
       mistral_calls,
       mistral_grammar,
       "[TOOL_CALLS]",
       "",
       true},
      {"mistral_list",
       {{"[TOOL_CALLS]"}},
       {"[TOOL_CALLS]"},
       mistral_calls,
       mistral_list_grammar,
       "[TOOL_CALLS]",
       "",
       false},
      {"llama3",
       {{"\"parameters\": ", "<|start_header_id|>"}},
       {"<|python_tag|>"},
       llama_calls,
       llama_grammar,
       "",
       "; ",
       true,
       llama_answers},
      {"lfm2",
       // Templates print the model's own text for its calls.
       {{"<|tool_call_start|>"}, {"List of tools: ", "<|im_start|>"}},
       {"<|tool_call_start|>", "<|tool_call_end|>"},
       lfm_calls,
       lfm_grammar,
       "<|tool_call_start|>",
       "",
       false},
  };
  return all;
}

}  // namespace

const CallFormat* call_format(std::string_view chat_template) {
  for (const CallFormat& format : formats())
    for (const auto& texts : format.signs)
      if (std::all_of(texts.begin(), texts.end(), [&](std::string_view sign) {
            return chat_template.find(sign) != chat_template.npos;
          }))
        return &format;
  return nullptr;
}

}  // namespace riffle::requests
