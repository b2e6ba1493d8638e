// Functions of riffle_grammar.h: grammars.
#include "api/api_handles.h"
#include "grammar/model_grammar.h"

using namespace riffle;

// Returns 'a' for a printable byte, 0x0a for another.
static std::string shown_byte(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return code > 0x20 && code < 0x7f ? format("'%c'", byte) : format("0x%02x", code);
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

riffle_status riffle_grammar_continue(const riffle_grammar* grammar, const char* text,
                                      size_t text_len, riffle_grammar** rest, char* err,
                                      size_t err_size) {
  if (rest) *rest = nullptr;
  return guarded(err, err_size, [&] {
    require(grammar, "grammar");
    require(text || !text_len, "text");
    require(rest, "rest");
    auto out = std::make_unique<riffle_grammar>(*grammar);
    if (text_len) out->begun.append(text, text_len);
    grammar::Matcher matcher(out->grammar, {});
    const std::string_view begun = out->begun;
    for (size_t i = 0; i < begun.size(); ++i)
      if (!matcher.accept(begun.substr(i, 1)))
        fail(RIFFLE_BAD_ARGUMENT,
             "text: found %s at byte %zu, which the grammar does not allow there; expected the "
             "beginning of a text of the grammar",
             shown_byte(begun[i]).c_str(), i + 1 - std::min(i, grammar->begun.size()));
    *rest = out.release();
  });
}

void riffle_grammar_free(riffle_grammar* grammar) { delete grammar; }

}  // extern "C"
