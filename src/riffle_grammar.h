/* riffle_grammar.h: constraints on answers. The rules of riffle.h hold.
 */
#ifndef RIFFLE_GRAMMAR_H
#define RIFFLE_GRAMMAR_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- grammars */

/* A grammar constrains the text of an answer. It is compiled once for a model, does not change,
 * and may be used by any number of answers, contexts and threads at once. */
typedef struct riffle_grammar riffle_grammar;

typedef enum riffle_grammar_kind {
  /* GBNF, as llama.cpp documents it. The answer matches the rule "root". Left recursion is
     refused */
  RIFFLE_GRAMMAR_GBNF = 0,
  /* a JSON Schema. Answers are JSON texts that are valid by the schema. Unsupported parts are
     refused, with their place in the schema; riffle-run(1) lists the supported ones */
  RIFFLE_GRAMMAR_JSON_SCHEMA = 1,
  /* a regular expression of ECMA 262 that the whole answer matches, without look-around and back
     references */
  RIFFLE_GRAMMAR_REGEX = 2
} riffle_grammar_kind;

/* Compiles a text. RIFFLE_BAD_ARGUMENT: the text is not a grammar of this kind; the error names
 * line and column, or the place in the schema. RIFFLE_UNSUPPORTED: it asks for a feature that
 * riffle lacks, or for more than riffle allows (size, nesting). RIFFLE_BAD_TEXT: it is not UTF-8.
 * The grammar may be freed while answers use it, and after the model. */
RIFFLE_API riffle_status riffle_grammar_create(riffle_model* model, riffle_grammar_kind kind,
                                               const char* text, size_t text_len,
                                               riffle_grammar** grammar, char* err,
                                               size_t err_size);

/* Makes the same grammar for answers that continue a text, such as an assistant's message that
 * comes last in riffle_chat_prompt: the text and the answer together match the grammar. Unless the
 * text is empty, these answers have no reasoning, even if option "reasoning" asks for it.
 * RIFFLE_BAD_ARGUMENT: no text of the grammar begins with this text; the error names the first byte
 * that does not fit. Nothing is compiled again. Free `rest`; `grammar` may be freed before it. */
RIFFLE_API riffle_status riffle_grammar_continue(const riffle_grammar* grammar, const char* text,
                                                 size_t text_len, riffle_grammar** rest, char* err,
                                                 size_t err_size);
RIFFLE_API void riffle_grammar_free(riffle_grammar* grammar);

/* Constrains answers with these options; NULL: no grammar. The grammar may be freed. Tokens that
 * the grammar does not allow are never drawn: their logits are -infinity before top-k. An end token
 * may be drawn only where the text is complete, and never with ignore-eos. If no token is allowed,
 * the answer ends: STOP if the text is complete, else LENGTH. The text begins with white space only
 * if the grammar allows it. With trim-start, the first token may have other white space before the
 * text. That white space is dropped; a token of nothing but white space is not drawn. A stop string
 * may end an answer before the text is complete.
 *
 * Option "reasoning" says whether such an answer may begin with reasoning, between the model's
 * tags (reasoning_begin and reasoning_end of riffle_model_info); the grammar constrains the text
 * that follows, before which there may be up to 8 bytes of white space. If the model has no tags,
 * all three act as none.
 *
 * - none: the grammar constrains the answer from its first token
 * - allowed: the answer may begin with the begin tag of reasoning
 * - begun: the prompt ends inside of reasoning (riffle_chat_prompt) */
RIFFLE_API riffle_status riffle_options_set_grammar(riffle_options* options,
                                                    const riffle_grammar* grammar);

/* ---- biases and breakers */

#define RIFFLE_MAX_LOGIT_BIAS 100.0f /* largest absolute value of a bias, except -infinity */

/* Never changes. */
typedef struct riffle_logit_bias {
  int32_t token;
  float bias; /* added to the token's logit; -infinity forbids the token */
} riffle_logit_bias;

/* Copies the biases, in place of earlier ones. riffle_generate checks them: RIFFLE_BAD_ARGUMENT if
 * one is out of range, or a token has two or is not in the vocabulary. */
RIFFLE_API riffle_status riffle_options_set_logit_bias(riffle_options* options,
                                                       const riffle_logit_bias* bias, size_t n);

/* Copies the sequence breakers of DRY, in place of the default ones: line break, colon, quotation
 * mark and asterisk. NULL: the default ones; not NULL and 0 strings: none.
 *
 * DRY ("don't repeat yourself") makes repetitions less likely. Let n be the largest number of last
 * tokens that also occur somewhere earlier in front of a token t. If n is dry-allowed-length or
 * more, t's logit falls by dry-multiplier * dry-base ^ (n - dry-allowed-length), at most 1e30. A
 * sequence breaker is a text across which DRY sees no repetition: the n tokens begin after the last
 * token that ends a breaker. A token whose own text contains a breaker is not made less likely. The
 * text of a control token is its name, such as "<|im_end|>". RIFFLE_BAD_ARGUMENT: a breaker is NULL
 * or empty. */
RIFFLE_API riffle_status riffle_options_set_breakers(riffle_options* options,
                                                     const char* const* breakers, size_t n);

#ifdef __cplusplus
}
#endif
#endif
