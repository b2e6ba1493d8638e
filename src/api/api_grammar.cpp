// Functions of riffle_grammar.h: grammars.
#include "api/api_handles.h"
#include "grammar/model_grammar.h"

using namespace riffle;

std::shared_ptr<const riffle_grammar> riffle::compiled(riffle_model* model,
                                                       riffle_grammar_kind kind,
                                                       std::string_view text) {
  auto out = std::make_shared<riffle_grammar>();
  out->tokenizer = &tokenizer_of(*model);
  out->grammar = grammar::compile_grammar(*model->model, tokens_of(model), kind, text);
  return out;
}

std::shared_ptr<const grammar::TokenTries> riffle::tokens_of(riffle_model* model) {
  const std::lock_guard<std::mutex> lock(model->tokens_lock);
  if (!model->tokens) model->tokens = grammar::token_tries(*model->model);
  return model->tokens;
}

std::shared_ptr<const grammar::TokenTries> riffle::tokens_of(
    riffle_model* model, std::span<const std::string_view> markers) {
  // The markers are those of the model's format, always the same.
  const std::lock_guard<std::mutex> lock(model->tokens_lock);
  if (!model->marked_tokens) model->marked_tokens = grammar::marked_tries(*model->model, markers);
  return model->marked_tokens;
}

extern "C" {

riffle_status riffle_grammar_create(riffle_model* model, riffle_grammar_kind kind, const char* text,
                                    size_t text_len, riffle_grammar** grammar, char* err,
                                    size_t err_size) {
  if (grammar) *grammar = nullptr;
  return guarded(err, err_size, [&] {
    require(model, "model");
    require(text || !text_len, "text");
    require(grammar, "grammar");
    auto out = std::make_unique<riffle_grammar>(
        *compiled(model, kind, std::string_view(text ? text : "", text_len)));
    *grammar = out.release();
  });
}

riffle_status riffle_grammar_continue(const riffle_grammar* grammar, const char* text,
                                      size_t text_len, riffle_grammar** rest, char* err,
                                      size_t err_size) {
  if (rest) *rest = nullptr;
  return guarded(err, err_size, [&] {
    require(grammar, "grammar");
    require(text || !text_len, "text");
    require(rest, "rest");
    auto out = std::make_unique<riffle_grammar>(
        *grammar::continued(*grammar, std::string_view(text ? text : "", text_len)));
    *rest = out.release();
  });
}

void riffle_grammar_free(riffle_grammar* grammar) { delete grammar; }

}  // extern "C"
