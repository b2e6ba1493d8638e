// riffle run: one prompt, one answer.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common.h"
#include "cli/document.h"
#include "cli/grammar.h"
#include "cli/help.h"
#include "cli/prompt.h"
#include "cli/reasoning.h"
#include "cli/seed.h"
#include "cli/session.h"
#include "cli/terminal_hold.h"
#include "cli/text_file.h"

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

// False if Ctrl-C stopped it; the answer is then empty.
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

// Reads a document into the session and keeps it in the file of --session. Returns what a notice
// says after Ctrl-C, else "". save_id: of the file that is gone on with, 0 for a new one.
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
      notice(o.common.quiet, "[the document is not kept in %s: others have written to it]", path);
  } catch (const Exit& e) {
    if (e.code() == EXIT_INTERRUPTED) throw;
    // The answer needs no file.
    notice(o.common.quiet, "[the document is not kept: %s]", e.what());
  }
  return "";
}

// stop: keeps what the options point to.
riffle_generate_options generate_options(const RunOptions& o, bool message,
                                         std::vector<const char*>& stop) {
  riffle_generate_options g;
  riffle_generate_defaults(&g);
  g.max_tokens = o.common.generate.max_tokens;
  g.sampling = sampling_of(o.common);
  g.sampling.seed = o.common.seed ? *o.common.seed : draw_seed();
  g.ignore_eos = o.ignore_eos;
  g.trim_start = message;
  for (const std::string& s : o.stop) stop.push_back(s.c_str());
  g.stop = stop.data();
  g.n_stop = stop.size();
  return g;
}

// Whether the document begins with this text and the text ends at the end of a line.
bool begins_with(const std::string& document, std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || !document.starts_with(text)) return false;
  const char next = document.size() > text.size() ? document[text.size()] : '\n';
  return next == '\n' || next == '\r';
}

// The document of a session's file and what is asked about it. A user who gives the document again,
// with -f or through a pipe, means the kept one.
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
  Clock::time_point start, ready, end;  // of the command; of the context; of the answer
};

Json timings_json(const Times& times, const StreamedAnswer& answer) {
  const auto seconds = [&](Clock::time_point to) {
    return number(std::chrono::duration<double>(to - times.start).count());
  };
  return {{"start_seconds", seconds(times.ready)},
          {"first_token_seconds", answer.tokens.empty() ? Json(nullptr) : seconds(answer.first)},
          {"total_seconds", seconds(times.end)}};
}

int run_main(RunOptions& o) {
  Times times{};
  times.start = Clock::now();
  const TerminalHold dimmed;  // a signal that ends riffle ends dimmed text too
  const PromptParts parts = read_prompt_parts(o.prompt, o.common.quiet);
  std::optional<SessionFile> file;
  // A document and a question make a file that is not there yet.
  const bool makes_file =
      !o.session.empty() && parts.asked && !parts.document.empty() && is_new_file(o.session);
  if (makes_file) check_document_target(o.session);
  else if (!o.session.empty()) file.emplace(o.session);
  const GrammarText grammar_text = read_grammar(o.grammar);
  Model model = load_model(o.common);
  check_logit_bias(model.get(), o.common);
  const Grammar grammar = make_grammar(model.get(), grammar_text);
  say_unread_input(o.prompt, o.common.quiet);
  bool message;
  std::string prompt;
  if (file) {
    if (file->text().chat)
      throw Exit(EXIT_RUN, o.session +
                               ": found a chat, expected a document of riffle read "
                               "(riffle chat --session goes on with it)");
    prompt = prompt_of_session(o, file->text().document, parts);
    message = file->text().message;
    o.message.system = file->text().system;
  } else {
    prompt = parts.text();
    message = is_message(o.message, o.common, model.get());
  }
  if (message) check_no_nul(parts.source, parts.document);
  check_length(model.get(), prompt, o.common.context);
  if (!file) say_piped_document(o.prompt, parts, o.common.quiet);
  const auto form = [&] {
    return question_prompt(model.get(), o.message.system, prompt, message, o.common.thinking);
  };
  ChatPrompt formed;
  if (!file) formed = form();
  // What AUTO stands for; whatever is wrong with the options, creating the context says.
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  if (o.common.json) riffle_plan_memory(model.get(), &o.common.context, &plan, nullptr, 0);
  say_unread_settings(o.common);
  say_unread_thinking(model.get(), o.common);
  Context context = create_context(model.get(), o.common.context, o.common.quiet);
  InterruptGuard guard(context.get());
  Session session =
      file ? file->load(context.get(), o.common.quiet) : create_session(context.get());
  std::string said = say_notice(context.get(), o.common.quiet);
  // A file of another model has been refused by now, as one whose prompt this model cannot form.
  if (file) {
    formed = form();
    const std::vector<int32_t> held = file->tokens();
    say_read_again(o.session, held, held.size(), session.get(), formed.tokens, o.common.quiet);
  }
  const auto& [tokens, in_reasoning] = formed;
  times.ready = Clock::now();
  std::string stopped;  // in the document of --session: what is kept of it
  if (makes_file || (file && file->text().all_tokens)) {
    const SavedText text =
        file
            ? file->text()
            : SavedText{.message = message, .document = parts.document, .system = o.message.system};
    const std::vector<int32_t> of_document = document_tokens(model.get(), text, o.common.thinking);
    const std::vector<int32_t> held = file ? file->tokens() : std::vector<int32_t>();
    // With another chat template than the file's the tokens differ: they are read for this answer.
    const bool kept =
        !of_document.empty() && begins_with(of_document, held) && begins_with(tokens, of_document);
    if (file)
      notice(o.common.quiet, "[%s holds %zu of %zu tokens of its document; the rest is read now%s]",
             o.session.c_str(), held.size(), text.all_tokens, kept ? " and kept there" : "");
    else if (!kept)
      notice(o.common.quiet,
             "[the document is not kept in %s: the chat template does not begin with it]",
             o.session.c_str());
    if (kept)
      stopped = read_kept_document(o, text, context.get(), session.get(), of_document,
                                   file ? file->info().save_id : 0);
  }
  const bool read = stopped.empty() && read_prompt(o, context.get(), session.get(), tokens);
  std::vector<const char*> stop;
  riffle_generate_options g = generate_options(o, message, stop);
  g.grammar = grammar.get();
  g.reasoning = reasoning_of(message, in_reasoning, o.common.thinking);
  StreamedAnswer answer(message ? reasoning_marks(model.get()) : ReasoningMarks(), in_reasoning,
                        !o.common.json, o.common.quiet);
  riffle_result result{};
  result.finish = RIFFLE_FINISH_ABORTED;
  if (read)
    check(riffle_generate(session.get(), &g, StreamedAnswer::on_token, &answer, &result),
          context.get());
  answer.finish();
  times.end = Clock::now();
  if (!answer.error.empty()) throw Exit(EXIT_RUN, answer.error);
  const riffle_stats stats = context_stats(context.get());
  // Also in a pipe, as ollama run and llama-cli: files and loops get whole lines.
  if (read && !o.common.json && !answer.text.ends_with('\n')) write_out("\n");
  said = say_notice(context.get(), o.common.quiet, said);
  if (o.common.json) {
    print_json(
        {{"text", answer.text},
         {"reasoning_content", answer.reasoning.empty() ? Json(nullptr) : Json(answer.reasoning)},
         {"tokens", answer.tokens},
         {"finish_reason", finish_name(result.finish)},
         {"prompt_tokens", tokens.size()},
         {"completion_tokens", result.n_tokens},
         {"timings", timings_json(times, answer)},
         {"stats", stats_json(stats)},
         {"device", plan.device ? Json(plan.device) : Json(nullptr)},
         {"device_note", plan.device_note},
         {"notice", said.empty() ? Json(nullptr) : Json(said)},
         {"options", context_json(o.common.context)},
         {"seed", g.sampling.seed},
         {"model", o.common.model_path},
         {"chat_template",
          message ? Json(model_info(model.get()).chat_template_name) : Json(nullptr)},
         {"version", riffle_version()}});
  } else if (read) {
    const std::string seed = seed_text(g.sampling);
    notice(o.common.quiet, "[answer of %d tokens; %s; %s%s]", result.n_tokens,
           stats_line(stats).c_str(), finish_name(result.finish),
           seed.empty() ? "" : ("; " + seed).c_str());
    say_unfinished_reasoning(answer, result, o.common.quiet);
  } else {
    if (stopped.empty()) {
      stopped = "the prompt was being read";
      if (o.session.empty() && parts.asked && !parts.document.empty())
        stopped +=
            "; with --session FILE the same command keeps what it has read, and goes on from there";
    }
    notice(o.common.quiet, "[stopped: %s]", stopped.c_str());
  }
  return result.finish == RIFFLE_FINISH_ABORTED ? EXIT_INTERRUPTED : EXIT_OK;
}

}  // namespace

void add_run(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* sub = app.add_subcommand(
      "run", "Answer one prompt: -p TEXT, -f FILE, piped text, or a document and -p TEXT");
  set_notes(
      *sub,
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
leaves a pipe open. -f - waits for as long as it takes.)");
  add_prompt_flags(*sub, o->prompt);
  add_message_flags(*sub, o->message);
  CLI::Option* const session =
      sub->add_option("--session", o->session,
                      "document of 'riffle read'; with -f and -p also a new file")
          ->type_name("FILE")
          ->check(named_file);
  for (const char* flag : {"--raw", "--chat", "--system"})
    session->excludes(sub->get_option(flag));  // as when it was read
  add_stop_flag(*sub, o->stop);
  sub->add_flag("--ignore-eos", o->ignore_eos, "go on past the end-of-sequence token")
      ->group(kSamplingGroup);
  add_grammar_flags(*sub, o->grammar);
  add_common_flags(*sub, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | JSON_FLAG | CHAT_FLAG |
                       THINK_FLAGS | WEIGHTS_FLAG);
  exclude_raw(*sub);
  sub->final_callback([o, &chosen] { chosen = [o] { return run_main(*o); }; });
}

}  // namespace riffle::cli
