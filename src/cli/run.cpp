// riffle run: one prompt, one answer.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common.h"
#include "cli/document.h"
#include "cli/grammar.h"
#include "cli/help.h"
#include "cli/prompt.h"
#include "cli/reasoning.h"
#include "cli/session.h"
#include "cli/terminal_hold.h"
#include "cli/text_file.h"
#include "riffle_request.h"

namespace riffle::cli {
namespace {

struct RunOptions {
  CommonOptions common;
  PromptFlags prompt;
  MessageFlags message;
  GrammarFlags grammar;
  bool ignore_eos = false;
  std::string session;
  std::vector<std::string> stop;
};

using Clock = std::chrono::steady_clock;

// Reads the prompt. Returns false if Ctrl-C stopped it; the answer is then empty.
bool read_prompt(const RunOptions& o, riffle_context* context, riffle_session* session,
                 const std::vector<int32_t>& tokens) {
  Progress progress("reading " + std::to_string(tokens.size()) + " tokens", o.common.quiet);
  const riffle_status status =
      riffle_prefill_to(session, tokens.data(), tokens.size(), Progress::callback, &progress);
  if (status == RIFFLE_ABORTED && interrupted()) return false;
  check(status, context);
  return true;
}

bool begins_with(const std::vector<int32_t>& tokens, const std::vector<int32_t>& first) {
  return first.size() <= tokens.size() && std::equal(first.begin(), first.end(), tokens.begin());
}

// Reads a document into the session and keeps it in the file of --session. Returns the text of a
// notice after Ctrl-C, else "". save_id: id of the save that is continued, 0 for a new file.
std::string read_kept_document(const RunOptions& o, SavedText text, riffle_context* context,
                               riffle_session* session, const std::vector<int32_t>& tokens,
                               uint64_t save_id) {
  if (!read_prompt(o, context, session, tokens))
    return keep_begun(o.session, text, context, session, tokens.size(), o.common.quiet);
  text.all_tokens = 0;
  const char* const path = o.session.c_str();
  try {
    if (save_session(context, session, o.session, text, o.common.quiet, &save_id))
      notice(o.common.quiet, "[%s holds the whole document now: %zu tokens]", path, tokens.size());
    else
      notice(o.common.quiet, "[the document is not kept in %s: another program has written to it]",
             path);
  } catch (const Exit& e) {
    if (e.code() == EXIT_INTERRUPTED) throw;
    // The answer does not need the file.
    notice(o.common.quiet, "[the document is not kept: %s]", e.what());
  }
  return "";
}

// Returns the options of the answer.
Options answer_options(const RunOptions& o, const riffle_grammar* grammar) {
  Options answer = o.common.options;
  answer.set("seed", o.common.seed ? *o.common.seed : riffle_random_seed());
  answer.set("ignore-eos", o.ignore_eos);
  answer.set_grammar(grammar);
  answer.set_stop(o.stop);
  return answer;
}

// Returns true if the document begins with this text and the text ends at the end of a line.
bool begins_with(const std::string& document, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || !document.starts_with(text)) return false;
  const char next = document.size() > text.size() ? document[text.size()] : '\n';
  return next == '\n' || next == '\r';
}

// Returns the document of a session's file and the question about it. If the user gives the
// document again, with -f or through a pipe, it is not added a second time.
std::string prompt_of_session(const RunOptions& o, const std::string& kept, const PromptParts& p) {
  const char* const source = p.source.c_str();
  if (begins_with(kept, p.document)) {
    notice(o.common.quiet, "[%s is not read again: %s holds its text]", source, o.session.c_str());
    return p.asked ? with_document(kept, p.question) : kept;
  }
  if (!p.document.empty() && (p.asked || !o.prompt.file.empty()))
    notice(o.common.quiet, "[%s is read after the document in %s]", source, o.session.c_str());
  return with_document(kept, p.text());
}

struct Times {
  Clock::time_point start, ready, end;  // start of the command; context ready; end of the answer
};

Json timings_json(const Times& times, const StreamedAnswer& answer) {
  const auto seconds = [&](Clock::time_point to) {
    return number(std::chrono::duration<double>(to - times.start).count());
  };
  return {{"start_seconds", seconds(times.ready)},
          {"first_token_seconds", answer.tokens.empty() ? Json(nullptr) : seconds(answer.first)},
          {"total_seconds", seconds(times.end)}};
}

// The question: its parts are read before the model is loaded, and joined with it.
struct Question {
  PromptParts parts;
  std::optional<SessionFile> file;  // file of --session, if it exists already
  bool makes_file = false;          // the document is kept in a new file
  std::string prompt, system;
  bool message = false;  // true: formed by a chat template
};

void read_question(const RunOptions& o, Question& q) {
  q.parts = read_prompt_parts(o.prompt, o.common.quiet);
  q.makes_file =
      !o.session.empty() && q.parts.asked && !q.parts.document.empty() && is_new_file(o.session);
  if (q.makes_file) check_document_target(o.session);
  else if (!o.session.empty()) q.file.emplace(o.session);
}

// Decides between a message and plain text, and checks the length.
void complete(Question& q, const RunOptions& o, riffle_model* model) {
  if (q.file) {
    const SavedText& kept = q.file->text();
    if (kept.chat)
      throw Exit(EXIT_RUN, o.session +
                               ": found a chat, expected a document of riffle read "
                               "(riffle chat --session continues it)");
    q.prompt = prompt_of_session(o, kept.document, q.parts);
    q.message = kept.message;
    q.system = kept.system;
  } else {
    q.prompt = q.parts.text();
    q.message = is_message(o.message, o.common, model);
    q.system = o.message.system;
  }
  if (q.message) check_no_nul(q.parts.source, q.parts.document);
  check_length(model, q.prompt, o.common.options);
  if (!q.file) say_piped_document(o.prompt, q.parts, o.common.quiet);
}

// Reads the document of --session as far as the file lacks it. Returns the text of a notice after
// Ctrl-C, else "".
std::string read_document(const RunOptions& o, const Question& q, riffle_model* model,
                          riffle_context* context, riffle_session* session,
                          const std::vector<int32_t>& tokens) {
  if (!q.makes_file && !(q.file && q.file->text().all_tokens)) return "";
  const SavedText text =
      q.file ? q.file->text()
             : SavedText{.message = q.message, .document = q.parts.document, .system = q.system};
  const std::vector<int32_t> of_document = document_tokens(model, text, o.common.thinking);
  const std::vector<int32_t> held = q.file ? q.file->tokens() : std::vector<int32_t>();
  // With another chat template than the file's, the tokens differ: they are read for this answer
  // only.
  const bool kept =
      !of_document.empty() && begins_with(of_document, held) && begins_with(tokens, of_document);
  if (q.file)
    notice(o.common.quiet, "[%s holds %zu of %zu tokens of its document; the rest is read now%s]",
           o.session.c_str(), held.size(), text.all_tokens, kept ? " and kept there" : "");
  else if (!kept)
    notice(o.common.quiet,
           "[the document is not kept in %s: the chat template does not begin with it]",
           o.session.c_str());
  if (!kept) return "";
  return read_kept_document(o, text, context, session, of_document, q.file ? q.file->save_id() : 0);
}

// An answer, and the facts that are printed about it.
struct Outcome {
  const StreamedAnswer& answer;
  const riffle_result& result;
  const Options& options;  // options of the answer
  const Times& times;
  size_t prompt_tokens;
  const Facts& plan;
  std::string notice;
};

void print_answer(const RunOptions& o, const Question& q, riffle_model* model,
                  riffle_context* context, const Outcome& out) {
  const Json none(nullptr);
  const StreamedAnswer& answer = out.answer;
  print_json(
      {{"text", answer.text},
       {"reasoning_content", answer.reasoning.empty() ? none : Json(answer.reasoning)},
       {"tokens", answer.tokens},
       {"finish_reason", finish_name(out.result.finish)},
       {"prompt_tokens", out.prompt_tokens},
       {"completion_tokens", out.result.n_tokens},
       {"timings", timings_json(out.times, answer)},
       {"stats", stats_json(context_stats(context))},
       {"device", out.plan.empty() ? none : Json(out.plan.text("device"))},
       {"device_note", out.plan.text("device_note")},
       {"notice", out.notice.empty() ? none : Json(out.notice)},
       {"options", context_json(o.common.options)},
       {"seed", out.options.size("seed")},
       {"model", o.common.model_path},
       {"chat_template", q.message ? Json(model_info(model).text("chat_template_name")) : none},
       {"version", riffle_version()}});
}

void say_answer(const RunOptions& o, const Facts& stats, const Outcome& out) {
  const std::string seed = seed_text(out.options);
  notice(o.common.quiet, "[answer of %d tokens; %s; %s%s]", out.result.n_tokens,
         stats_line(stats).c_str(), finish_name(out.result.finish),
         seed.empty() ? "" : ("; " + seed).c_str());
  say_unfinished_reasoning(out.answer, out.result, o.common.quiet);
}

// stopped: text about the document of --session and its kept tokens; "" if the prompt was being
// read.
void say_stopped(const RunOptions& o, const PromptParts& parts, std::string stopped) {
  if (stopped.empty()) {
    stopped = "the prompt was being read";
    if (o.session.empty() && parts.asked && !parts.document.empty())
      stopped +=
          "; with --session FILE the same command keeps the tokens it has read, and continues from "
          "there";
  }
  notice(o.common.quiet, "[stopped: %s]", stopped.c_str());
}

int run_main(RunOptions& o) {
  Times times{};
  times.start = Clock::now();
  const bool quiet = o.common.quiet;
  const TerminalHold dimmed;  // a signal that ends riffle also turns dimmed text off
  Question q;
  read_question(o, q);
  const GrammarText grammar_text = read_grammar(o.grammar);
  Model model = load_model(o.common);
  check_logit_bias(model.get(), o.common);
  const Grammar grammar = make_grammar(model.get(), grammar_text);
  say_unread_input(o.prompt, quiet);
  complete(q, o, model.get());
  const Options g = answer_options(o, grammar.get());
  const auto form = [&] {
    return question_prompt(model.get(), q.system, q.prompt, q.message, o.common.thinking, g);
  };
  ChatPrompt formed;
  if (!q.file) formed = form();
  // The plan names the selector that auto chose. Errors in the options are reported when the
  // context is created.
  const Facts plan = o.common.json ? plan_of(model.get(), o.common.options) : Facts();
  say_unread_settings(o.common);
  say_unread_thinking(model.get(), o.common);
  Context context = create_context(model.get(), o.common.options, quiet);
  InterruptGuard guard(context.get());
  Session session = q.file ? q.file->load(context.get(), quiet) : create_session(context.get());
  std::string said = say_notice(context.get(), quiet);
  // Formed after loading the file, which refuses one of another model: this model may be unable to
  // form that prompt.
  if (q.file) {
    formed = form();
    const std::vector<int32_t> held = q.file->tokens();
    say_read_again(o.session, held, held.size(), session.get(), formed.tokens, quiet);
  }
  say_fitted(formed, quiet);
  const std::vector<int32_t>& tokens = formed.tokens;
  times.ready = Clock::now();
  const std::string stopped =
      read_document(o, q, model.get(), context.get(), session.get(), tokens);
  const bool read = stopped.empty() && read_prompt(o, context.get(), session.get(), tokens);
  StreamedAnswer answer(formed.request.get(), !o.common.json, quiet);
  riffle_result result{};
  result.finish = RIFFLE_FINISH_ABORTED;
  if (read)
    check(riffle_generate(session.get(), formed.options(g), StreamedAnswer::on_token, &answer,
                          &result),
          context.get());
  answer.finish(result);
  times.end = Clock::now();
  if (!answer.error.empty()) throw Exit(EXIT_RUN, answer.error);
  // Also in a pipe, like ollama run and llama-cli, so that files and loops get whole lines.
  if (read && !o.common.json && !answer.text.ends_with('\n')) write_out("\n");
  said = say_notice(context.get(), quiet, said);
  const Outcome out{answer, result, g, times, tokens.size(), plan, said};
  if (o.common.json) print_answer(o, q, model.get(), context.get(), out);
  else if (read) say_answer(o, context_stats(context.get()), out);
  else say_stopped(o, q.parts, stopped);
  return result.finish == RIFFLE_FINISH_ABORTED ? EXIT_INTERRUPTED : EXIT_OK;
}

}  // namespace

void add_run(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<RunOptions>();
  CLI::App& command = add_command(
      app, "run", "Answer one prompt: -p TEXT, -f FILE, piped text, or a document and -p TEXT");
  set_notes(
      command,
      R"(Document and question: riffle run -f FILE -p TEXT, or ... | riffle run -p TEXT.
If the model has a chat template that riffle can evaluate, the prompt becomes a user's message.
Otherwise, and with --raw, the model continues the prompt.)",
      R"(A plain prompt begins with the beginning-of-sequence token. The answer is streamed to stdout and
ends in a line break. A model's reasoning is no part of the answer: it is shown dimmed on a
terminal's stderr, and is reasoning_content in --json.
-p TEXT follows the document on a line of its own. With -f, standard input is not read (-f -: it is
the document). With -p alone it is read to its end if it is a pipe, a socket, or a file that nobody
has begun to read. A pipe that stays open and sends nothing for 10 s is an error. Give < /dev/null
if there is no document: in a loop that reads standard input itself, and where ssh, a script or CI
leaves a pipe open. -f - waits for as long as it takes.
The same text each time: --temp 0 or the same --seed, and the same flags; on a CPU a named --isa, on
a GPU a named --selector or the same --gpu-mem (man riffle-run).)");
  add_prompt_flags(command, o->prompt);
  add_message_flags(command, o->message);
  Flag session = add_text(command, "--session", o->session,
                          "document kept in FILE by 'riffle read'; with -f and -p, FILE may be new")
                     .value("FILE")
                     .check(named_file);
  for (const char* flag : {"--raw", "--chat", "--system"})
    session.excludes(flag_named(command, flag));  // the document keeps the flags it was read with
  add_stop_flag(command, o->stop);
  add_switch(command, "--ignore-eos", o->ignore_eos, "continue past the end-of-sequence token")
      .group(kSamplingGroup);
  add_grammar_flags(command, o->grammar);
  add_common_flags(command, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | JSON_FLAG | CHAT_FLAG |
                       THINK_FLAGS | WEIGHTS_FLAG);
  exclude_raw(command);
  when_parsed(command, [o, &chosen] { chosen = [o] { return run_main(*o); }; });
}

}  // namespace riffle::cli
