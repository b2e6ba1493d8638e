#include "requests/tool_grammar.h"

#include "grammar/model_grammar.h"

namespace riffle::requests {
namespace {

using grammar::Expressions;
using grammar::ExprId;

constexpr uint32_t kMostCalls = 16;  // in an answer that must call

std::vector<const Tool*> allowed_tools(const ToolUse& use) {
  std::vector<const Tool*> out;
  for (const Tool& tool : use.tools)
    if (use.choice != ToolUse::NAMED || tool.name == use.named) out.push_back(&tool);
  return out;
}

// Calls alone. behind: the text behind a trigger.
ExprId calls_only(const CallFormat& format, ExprId behind, bool parallel, Expressions* e) {
  const ExprId trigger = e->text(format.trigger), one = e->sequence({trigger, behind});
  if (!format.repeats || !parallel) return one;
  const ExprId more = e->sequence({e->text(format.between), one});
  return e->sequence({one, e->repeat(more, 0, kMostCalls - 1)});
}

// Free text in which each trigger begins a call.
ExprId text_with_calls(const CallFormat& format, ExprId behind, bool parallel, Expressions* e) {
  const ExprId free = e->without(format.trigger), begin = e->until(format.trigger);
  if (!parallel) return e->choice({free, e->sequence({begin, behind})});
  const uint32_t text = e->declare("text");
  e->define(text, e->choice({free, e->sequence({begin, behind, e->rule(text)})}));
  return e->rule(text);
}

std::shared_ptr<const riffle_grammar> compile(const ToolUse& use,
                                              const std::optional<AnswerGrammar>& answer,
                                              const CallFormat& format, const Answering& by) {
  Expressions e;
  const ExprId text = answer && !use.must_call()
                          ? e.rule(grammar::read_grammar(answer->kind, answer->text, &e))
                          : Expressions::kNever;
  const uint32_t rule = e.add_rule("tools", tool_answers(use, format, text, &e));
  auto out = std::make_shared<riffle_grammar>();
  out->tokenizer = by.model.tokenizer.get();
  out->grammar =
      grammar::compiled_grammar(by.model, by.marked_tokens(format.markers), std::move(e), rule);
  return out;
}

}  // namespace

ExprId tool_answers(const ToolUse& use, const CallFormat& format, ExprId text, Expressions* e) {
  const std::vector<const Tool*> tools = allowed_tools(use);
  if (!use.must_call() && format.answers) return format.answers(tools, use.parallel, text, e);
  const ExprId behind = format.grammar(tools, use.parallel, e);
  if (use.must_call()) return calls_only(format, behind, use.parallel, e);
  if (text == Expressions::kNever) return text_with_calls(format, behind, use.parallel, e);
  return e->choice({text, calls_only(format, behind, use.parallel, e)});
}

GrammarCache::Grammar tool_grammar(const ToolUse& use, const std::optional<AnswerGrammar>& answer,
                                   const CallFormat& format, const Answering& by) {
  const bool must = use.must_call();
  std::string key = std::string("tools ") + format.name + (use.parallel ? " " : "1 ") +
                    (must ? "must " : "may ") + use.named + " ";
  for (const Tool& tool : use.tools) key += tool.definition.dump();
  if (answer && !must) key += std::to_string(static_cast<int>(answer->kind)) + answer->text;
  try {
    return by.grammars.get(key, [&] { return compile(use, answer, format, by); });
  } catch (const Error& e) {
    if (e.status() == RIFFLE_OUT_OF_MEMORY) throw;
    // A call that may come is then written freely.
    if (!must && !answer) return nullptr;
    Reason reason = kUnsupportedValue;
    reason.status = e.status();
    throw Refused(reason, "body.tools", std::string("field body.tools: ") + e.what());
  }
}

}  // namespace riffle::requests
