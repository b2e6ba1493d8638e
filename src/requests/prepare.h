// Makes the prompts of a request: tokens, and the options of its answers.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/token_tries.h"
#include "requests/answer.h"
#include "requests/conversation.h"
#include "requests/grammar_cache.h"
#include "requests/request.h"

namespace riffle::requests {

// The model that answers, and the functions of the interface that requests use.
struct Answering {
  const Model& model;
  GrammarCache& grammars;
  // Compiles a grammar for the model.
  std::function<GrammarCache::Grammar(riffle_grammar_kind kind, std::string_view text)> compile;
  // Returns the model's tries in which these control tokens have their spelling as text.
  std::function<std::shared_ptr<const grammar::TokenTries>(
      std::span<const std::string_view> markers)>
      marked_tokens;
};

struct Prepared {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<GenerateOptions> answers;
  Fitted fitted = Fitted::AS_IS;
  bool in_reasoning = false;
  AnswerForm form;  // form of the answers to a conversation
};

// Throws Error. A Refused names the field.
Prepared prepare(Request* request, const Answering& by);

}  // namespace riffle::requests
