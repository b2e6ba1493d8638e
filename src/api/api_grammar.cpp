// riffle.h: grammars.
#include "api/api_handles.h"
#include "grammar/model_grammar.h"

using namespace riffle;

extern "C" {

riffle_status riffle_grammar_create(riffle_model* model, riffle_grammar_kind kind, const char* text,
                                    size_t text_len, riffle_grammar** grammar, char* err,
                                    size_t err_size) {
  if (grammar) *grammar = nullptr;
  return guarded(err, err_size, [&] {
    require(model, "model");
    require(text || !text_len, "text");
    require(grammar, "grammar");
    auto out = std::make_unique<riffle_grammar>();
    out->tokenizer = &tokenizer_of(*model);
    std::shared_ptr<const grammar::TokenTries> tokens;
    {
      const std::lock_guard<std::mutex> lock(model->tokens_lock);
      if (!model->tokens) model->tokens = grammar::token_tries(*model->model);
      tokens = model->tokens;
    }
    out->grammar = grammar::compile_grammar(*model->model, std::move(tokens), kind,
                                            std::string_view(text, text_len));
    *grammar = out.release();
  });
}

void riffle_grammar_free(riffle_grammar* grammar) { delete grammar; }

}  // extern "C"
