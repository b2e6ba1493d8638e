// riffle read: a document is read once and kept, for riffle run --session.
#include <algorithm>

#include "cli/common.h"
#include "cli/document.h"
#include "cli/help.h"
#include "cli/prompt.h"
#include "cli/reasoning.h"
#include "cli/session.h"
#include "cli/text_file.h"

namespace riffle::cli {
namespace {

struct ReadOptions {
  CommonOptions common;
  MessageFlags message;
  std::vector<std::string> files;
  std::string output;
};

// Returns the session to continue: that of the output, if it holds the beginning of this document,
// as after Ctrl-C; else null. A notice says why an existing one cannot be used: another model,
// other settings, or damaged keys and values.
Session begun_session(const ReadOptions& o, const SavedText& text, riffle_context* context,
                      const std::vector<int32_t>& tokens) {
  if (is_new_file(o.output)) return nullptr;
  try {
    const SessionFile file(o.output);
    if (!file.has_text() || !is_same_document(file.text(), text)) return nullptr;
    const std::vector<int32_t> held = file.tokens();
    if (held.size() > tokens.size() || !std::equal(held.begin(), held.end(), tokens.begin()))
      return nullptr;
    Session session = file.load(context, o.common.quiet);
    notice(o.common.quiet, "[%s holds %zu of %zu tokens; reading continues from there]",
           o.output.c_str(), held.size(), tokens.size());
    return session;
  } catch (const Exit& e) {
    if (e.code() == EXIT_INTERRUPTED || e.code() == EXIT_MEMORY) throw;
    notice(o.common.quiet, "[the document is read from its beginning: %s]", e.what());
    return nullptr;
  }
}

int read_main(ReadOptions& o) {
  check_document_target(o.output);
  SavedText text;
  for (const std::string& file : o.files) {
    const std::string more = read_file(file);
    if (more.empty()) throw Exit(EXIT_RUN, file + ": found an empty file, expected text");
    if (!o.message.raw) check_no_nul(file, more);
    text.document = text.document.empty() ? more : with_document(text.document, more);
  }
  Model model = load_model(o.common);
  say_unread_thinking(model.get(), o.common);
  check_length(model.get(), text.document, o.common.options);
  text.system = o.message.system;
  text.message = is_message(o.message, o.common, model.get());
  const std::vector<int32_t> tokens = document_tokens(model.get(), text, o.common.thinking);
  // The messages of every question have these roles.
  say_fitted(question_prompt(model.get(), text.system, "?", text.message, o.common.thinking),
             o.common.quiet);
  if (tokens.empty()) throw Exit(EXIT_RUN, "the prompt does not begin with the document");
  Context context = create_context(model.get(), o.common.options, o.common.quiet);
  InterruptGuard guard(context.get());
  Session session = begun_session(o, text, context.get(), tokens);
  if (!session) session = create_session(context.get());
  say_notice(context.get(), o.common.quiet);
  {
    Progress progress("reading " + std::to_string(tokens.size()) + " tokens", o.common.quiet);
    const riffle_status status = riffle_prefill_to(session.get(), tokens.data(), tokens.size(),
                                                   Progress::callback, &progress);
    progress.finish();
    if (status == RIFFLE_ABORTED && interrupted())
      throw Exit(EXIT_INTERRUPTED,
                 "stopped: " + keep_begun(o.output, text, context.get(), session.get(),
                                          tokens.size(), o.common.quiet));
    check(status, context.get());
  }
  save_session(context.get(), session.get(), o.output, text, o.common.quiet);
  const SessionFile saved(o.output);
  notice(o.common.quiet, "[%s: %zu tokens, %s; riffle run --session %s%s -p TEXT asks about it]",
         o.output.c_str(), tokens.size(), human_bytes(saved.info().number("file_bytes")).c_str(),
         o.output.c_str(), saved.info().on("chose_tiles") ? " --prefill-selector tiles" : "");
  return EXIT_OK;
}

}  // namespace

void add_read(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<ReadOptions>();
  CLI::App& command = add_command(app, "read", "Read a document once and keep it for questions");
  set_notes(
      command,
      "Questions: riffle run --session FILE -p TEXT, with the same -m, --kv and --block. The\n"
      "answers are those of riffle run -f DOCUMENT -p TEXT.",
      "The file holds the document's text and its keys and values; only its owner can read\n"
      "it. An older document in FILE is replaced when the new one is complete. A chat in FILE is\n"
      "never replaced. After Ctrl-C, FILE keeps the tokens read so far, and the same command\n"
      "continues from there.");
  add_texts(command, "-f,--file", o->files,
            "the document; may be repeated, to read several files as one")
      .value("FILE")
      .required()
      .repeated();
  add_text(command, "-o,--output", o->output, "file to keep the document in")
      .value("FILE")
      .required()
      .check(named_file);
  add_message_flags(command, o->message);
  add_common_flags(command, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | CHAT_FLAG | THINK_FLAGS | WEIGHTS_FLAG);
  exclude_raw(command);
  when_parsed(command, [o, &chosen] { chosen = [o] { return read_main(*o); }; });
}

}  // namespace riffle::cli
