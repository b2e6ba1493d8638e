#include "requests/prepare.h"

#include "grammar/model_grammar.h"
#include "requests/seed.h"
#include "requests/tool_grammar.h"
#include "text/tokenizer.h"

namespace riffle::requests {
namespace {

// Adds the field to an error about it, except if memory is short.
[[noreturn]] void refuse(const std::string& field, const std::string& said, const Error& e) {
  if (e.status() == RIFFLE_OUT_OF_MEMORY) throw Error(e.status(), said + ": " + e.what());
  Reason reason = kWrongValue;
  reason.status = e.status();
  throw Refused(reason, field, said + ": " + e.what());
}

GrammarCache::Grammar grammar_of(const AnswerGrammar& wanted, const Answering& by) {
  try {
    return by.grammars.get(std::to_string(static_cast<int>(wanted.kind)) + wanted.text,
                           [&] { return by.compile(wanted.kind, wanted.text); });
  } catch (const Error& e) {
    refuse(wanted.field, "field " + wanted.field, e);
  }
}

// Returns the grammar of an answer that continues this text of a message.
GrammarCache::Grammar grammar_behind(const GrammarCache::Grammar& grammar, const Model& model,
                                     const std::string& field, const std::string& text) {
  // The grammar does not apply to a message's reasoning.
  const std::string& end = model.chat->reasoning_marks().end;
  const size_t mark = end.empty() ? text.npos : text.rfind(end);
  std::string begun = mark == text.npos ? text : text.substr(mark + end.size());
  if (mark != text.npos) begun.erase(0, begun.find_first_not_of(" \t\r\n"));
  try {
    return grammar::continued(*grammar, begun);
  } catch (const Error& e) {
    refuse(field, "field " + field + ", which the answer continues", e);
  }
}

[[noreturn]] void unsupported(const std::string& field, const char* why) {
  throw Refused({"bad_request", "unsupported_parameter", RIFFLE_UNSUPPORTED}, field,
                "field " + field + " is not supported: " + why);
}

// Refuses calls and their results if the template would leave them out.
void check_calls(const Request& r, const Model& model) {
  if (!model.chat || model.chat->knows_calls()) return;
  for (size_t i = 0; i < r.messages.size(); ++i) {
    const bool calls = !r.messages[i].calls.empty();
    if (calls || r.messages[i].role == "tool")
      unsupported(format("body.messages[%zu].%s", i, calls ? "tool_calls" : "role"), kNoCalls);
  }
}

// Returns the format of the model's calls; null: no tools are offered.
const CallFormat* format_of(const Request& r, const Model& model) {
  check_calls(r, model);
  if (!r.tools.offered()) return nullptr;
  if (model.chat && !model.chat->knows_tools()) unsupported("body.tools", kNoTools);
  const CallFormat* const found =
      model.chat ? call_format(model.chat->text_of_template()) : nullptr;
  if (!found && model.chat)
    unsupported("body.tools", "riffle does not know how this model writes calls of tools");
  return found;
}

void prepare_chat(Request* r, const Answering& by, GenerateOptions* options, Prepared* out) {
  const CallFormat* const calls = format_of(*r, by.model);
  out->form = answer_form(by.model, calls, &r->tools);
  std::vector<Json> definitions;
  if (calls)
    for (const Tool& tool : r->tools.tools) definitions.push_back(tool.definition);
  const Conversation c =
      fit_conversation(by.model, std::exchange(r->messages, {}), r->conversation, definitions);
  out->fitted = c.fitted;
  out->in_reasoning = c.prompt.in_reasoning;
  // White space after continued text belongs to the answer.
  options->trim_start = !c.continued;
  options->reasoning = c.prompt.in_reasoning                           ? ReasoningRule::BEGUN
                       : r->conversation.thinking != ThinkingRule::OFF ? ReasoningRule::ALLOWED
                                                                       : ReasoningRule::NONE;
  // A message that is continued has its header in the prompt, and is no call.
  if (calls && (calls->parser || r->tools.must_call() || !c.continued)) {
    GrammarCache::Grammar grammar = tool_grammar(r->tools, r->grammar, *calls, by);
    // Its headers are a part of the grammar.
    if (!calls->parser && grammar) options->reasoning = ReasoningRule::NONE;
    if (grammar) options->grammar = std::move(grammar);
  }
  if (options->grammar && c.continued && !c.prompt.in_reasoning) {
    options->reasoning = ReasoningRule::NONE;
    options->grammar = grammar_behind(options->grammar, by.model,
                                      format("body.messages[%zu].content", *c.continued), c.begun);
  }
  out->prompts.push_back(c.prompt.tokens);
}

void prepare_prompts(Request* r, const Model& model, Prepared* out) {
  if (!model.tokenizer)
    fail(RIFFLE_UNSUPPORTED, "the model has no tokenizer, which this call needs");
  for (Prompt& prompt : r->prompts)
    out->prompts.push_back(prompt.tokens.empty() ? model.tokenizer->encode(prompt.text, true, false)
                                                 : std::move(prompt.tokens));
  r->prompts = std::vector<Prompt>(r->prompts.size());
}

}  // namespace

Prepared prepare(Request* r, const Answering& by) {
  Prepared out;
  GenerateOptions options = r->answer;
  if (r->grammar) options.grammar = grammar_of(*r->grammar, by);
  if (r->chat) prepare_chat(r, by, &options, &out);
  else prepare_prompts(r, by.model, &out);
  // Choices of a request get different seeds, as identical requests do.
  const uint64_t seed = options.sampling.seed;
  for (size_t i = 0; i < r->n_answers(); ++i) {
    options.sampling.seed = i == 0 ? seed : derived_seed(seed, i);
    out.answers.push_back(options);
  }
  return out;
}

}  // namespace riffle::requests
