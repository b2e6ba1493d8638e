// The prompt of run and tokenize, from -p, a file or standard input.
#pragma once
#include <string>

#include "cli/args.h"
#include "cli/common.h"

namespace riffle::cli {

// A document, from -f FILE or piped in, and -p TEXT after it, on a line of its own: the shipped
// model was trained on documents and questions in this form. With -f, standard input is not read,
// unless it is the file (-f -).
//
// With -p, standard input may be anything that the caller happens to have:
//   a pipe, a FIFO or a socket   is read to its end; it must send something, or end, within
//                                kSilence seconds
//   a file, from its beginning   is read to its end
//   a file, partly read          is not read: a shell's `while read` loop needs the rest
//   a terminal, /dev/null        is not read
// Scripts, ssh and CI can pass on a pipe that never ends: riffle must not hang on it. A document
// may arrive late: riffle must not answer without it. So silence is an error.
struct PromptFlags {
  std::string text, file;
  Flag text_given, file_given;
};
constexpr int kSilence = 10;

// The parts of a prompt, as read.
struct PromptParts {
  std::string document;  // from a file or standard input; "": none
  std::string source;    // source of the document: the file's name, or "standard input"
  std::string question;  // -p
  bool asked = false;    // -p was given
  std::string text() const;
};

void add_prompt_flags(CLI::App& app, PromptFlags& flags);
// Throws Exit: EXIT_USAGE if nothing was given, EXIT_RUN if it is empty or cannot be read.
PromptParts read_prompt_parts(const PromptFlags& flags, bool quiet);
// Reads the prompt and returns its text.
std::string prompt_text(const PromptFlags& flags, bool quiet);
// Prints one line on stderr, unless quiet, if standard input was read as the document before -p: a
// loop that reads the same pipe would miss that text.
void say_piped_document(const PromptFlags& flags, const PromptParts& parts, bool quiet);
// Prints one line on stderr, unless quiet, if standard input holds text that prompt_text did not
// read.
void say_unread_input(const PromptFlags& flags, bool quiet);

// Flags that say whether the prompt becomes a user's message: run and read.
struct MessageFlags {
  bool chat = false, raw = false;
  std::string system;
};
void add_message_flags(CLI::App& app, MessageFlags& flags);
// Makes --raw exclude all flags about chat templates. Requires: those flags have been added.
void exclude_raw(CLI::App& app);
// Tells whether the prompt becomes a message. Without a flag, it does if the model has a chat
// template that riffle can evaluate.
bool is_message(const MessageFlags& flags, const CommonOptions& common, riffle_model* model);
// Throws Exit if a long text certainly has more tokens than the context of these options holds, so
// that the user does not wait until all of it is tokenised.
void check_length(riffle_model* model, const std::string& text, const Options& options);
// answer: options of the answer.
ChatPrompt question_prompt(riffle_model* model, const std::string& system, const std::string& text,
                           bool message, const Thinking& thinking, const Options& answer = {});
// Prints one line on stderr, unless quiet, if the conversation was changed for the chat template.
void say_fitted(const ChatPrompt& prompt, bool quiet);

}  // namespace riffle::cli
