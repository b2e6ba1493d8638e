/* riffle_text.h: text to tokens and back, conversations, documents, and facts of a vocabulary. The
 * rules of riffle.h hold.
 */
#ifndef RIFFLE_TEXT_H
#define RIFFLE_TEXT_H

#include "riffle.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  /* put the beginning-of-sequence token first, if the model's texts have one */
  RIFFLE_TOKENIZE_BOS = 1,
  /* read control tokens written in the text (such as <s>) as those tokens */
  RIFFLE_TOKENIZE_SPECIAL = 2
};

/* RIFFLE_BAD_TEXT names the byte offset of the first invalid sequence. */
RIFFLE_API riffle_status riffle_tokenize(riffle_model* model, const char* text, size_t text_len,
                                         uint32_t flags, int32_t* tokens, size_t capacity,
                                         size_t* n_tokens);

/* Returns the byte offset of the first invalid sequence, as riffle_tokenize names it. -1: the text
 * is UTF-8. */
RIFFLE_API int64_t riffle_utf8_error(const char* text, size_t text_len);

/* Returns true if the text is one JSON value in UTF-8, nested at most 256 levels deep. A number
 * beyond the range of double is refused. An object may have a key twice. If the result is false,
 * err says what is wrong, such as "found '}' in line 2 (byte 12 of the text), expected JSON". */
RIFFLE_API bool riffle_check_json(const char* text, size_t text_len, char* err, size_t err_size);

/* Writes the text of the tokens; control tokens have none; bytes that form no character become
 * U+FFFD. No NUL is added. */
RIFFLE_API riffle_status riffle_detokenize(riffle_model* model, const int32_t* tokens,
                                           size_t n_tokens, char* text, size_t capacity,
                                           size_t* text_len);

/* Returns the piece of one token as the vocabulary spells it ("<s>", "\xe2\x96\x81Hello",
 * "<0x0A>"), or NULL if out of range. */
RIFFLE_API const char* riffle_token_piece(const riffle_model* model, int32_t token);

/* Writes the bytes that a token has inside a text; they need not be whole UTF-8 characters. Control
 * tokens have none. RIFFLE_BAD_ARGUMENT if the token is not in the vocabulary. */
RIFFLE_API riffle_status riffle_token_bytes(riffle_model* model, int32_t token, char* bytes,
                                            size_t capacity, size_t* n_bytes);

/* Returns true if riffle_generate ends answers with this token, unless "ignore-eos" is set: eos_id,
 * further end tokens that the model's files name, and the token that ends a turn of its chat
 * template. */
RIFFLE_API bool riffle_is_end_token(const riffle_model* model, int32_t token);

/* Names of the chat formats that riffle has for models without a template, from index 0; NULL after
 * the last. Static strings. */
RIFFLE_API const char* riffle_chat_template_name(size_t index);

/* Forms a conversation as tokens, ready for the model to answer. The model's own template is
 * evaluated on the conversation, in bounded time and memory, and prints the same as Hugging Face's
 * apply_chat_template with a generation prompt. Option "chat-template" of riffle_model_load
 * replaces it by one of riffle's formats, for conversations [system,] user, assistant, user, ... If
 * the last message is an assistant's, the tokens end with its content, and the model continues it
 * (as with continue_final_message); if that message is empty, it is left out. Only text of the
 * template becomes control tokens. A message that spells one stays plain text. The token that ends
 * a turn in the template (<|im_end|>, <|eot_id|>) ends answers too. The template gets a message's
 * reasoning as reasoning_content and drops or keeps it. Options:
 *
 *     thinking          default, on or off: enable_thinking of the template
 *     reasoning-effort  low, medium or high: how long the model is to reason; "": the template's
 *                       default. Templates that do not use it ignore it (chat_effort)
 *     date              today, as "2026-11-23". A template with a default date (Llama 3.2) ignores
 *                       it, so that a conversation has the same tokens every day. Others that use
 *                       the date fail if it is ""
 *
 * in_reasoning: set to true if the template has begun the model's reasoning, so that the answer's
 * text begins inside it; may be NULL. RIFFLE_UNSUPPORTED: the model has no template, or it cannot
 * be evaluated. RIFFLE_BAD_ARGUMENT: there is no message; the template refuses the conversation;
 * roles do not fit a named format; the template cannot continue the last message; or it prints
 * nothing of a message that is not an assistant's. RIFFLE_BAD_TEXT: a message is not UTF-8. */
RIFFLE_API riffle_status riffle_chat_prompt(riffle_model* model, const riffle_message* messages,
                                            size_t n_messages, const riffle_options* options,
                                            int32_t* tokens, size_t capacity, size_t* n_tokens,
                                            bool* in_reasoning);

/* ---- documents: texts that are read once and asked about often. `riffle read` and `riffle run`
 * form prompts by these rules. */

/* Joins a document and a question into one text: the document without line breaks at its end, a
 * line break, the question. No NUL is added. */
RIFFLE_API riffle_status riffle_document_question(const char* document, size_t document_len,
                                                  const char* question, size_t question_len,
                                                  char* text, size_t capacity, size_t* text_len);

/* Writes the tokens with which every prompt about a document begins. After riffle_prefill_to of
 * these tokens, a session reads only the rest of each prompt.
 *
 * message: true: document and question form one user message, as in riffle_request_prepare with
 * these options. A system message precedes it unless system is NULL or "". The errors are those of
 * riffle_chat_prompt. false: they are plain text, without a system message.
 * RIFFLE_BAD_ARGUMENT: a system message without message, or a message with a NUL. */
RIFFLE_API riffle_status riffle_document_tokens(riffle_model* model, const char* document,
                                                size_t document_len, const char* system,
                                                bool message, const riffle_options* options,
                                                int32_t* tokens, size_t capacity, size_t* n_tokens);

#ifdef __cplusplus
}
#endif
#endif
