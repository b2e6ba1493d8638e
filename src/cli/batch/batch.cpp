// riffle batch: many prompts from a JSONL file, answers in the same order.
#include <unistd.h>

#include <csignal>
#include <optional>

#include "cli/batch/runner.h"
#include "cli/help.h"
#include "cli/reasoning.h"
#include "cli/settings.h"

namespace riffle::cli {
namespace {

struct BatchOptions {
  CommonOptions common;
  std::string in = "-", out = "-", errors;  // errors "": in out, too
  int max_seqs = 0;                         // 0: the number in the plan
  bool unordered = false, restart = false, retry_errors = false, ignore_unknown = false;
  Shard shard;
  std::string prefix_cache;        // "": none
  uint64_t prefix_cache_size = 0;  // 0: the library's own limit
};

// Facts about the earlier records in the output, before anything is added.
struct Held {
  size_t n, failed;
  bool in_order;
  AnsweringModel model;  // model of the first answer; no name: there is none
};

Held held_by(const BatchOutput& output) {
  const auto& held = output.held();
  return {held.by_line.size(), held.failed, held.in_order, held.model};
}

AnsweringModel answering_model(const BatchOptions& o, riffle_model* model,
                               riffle_context* context) {
  uint64_t fingerprint = 0;
  check(riffle_context_fingerprint(context, &fingerprint), context);
  return {model_name(model, o.common.model_path),
          text_of("fp_%016llx", static_cast<unsigned long long>(fingerprint))};
}

// Says that earlier answers in the output are not by the model that answers now.
void say_other_model(const BatchOutput& output, const AnsweringModel& earlier,
                     const AnsweringModel& now, bool quiet) {
  if (earlier.name.empty()) return;
  if (earlier.name != now.name)
    notice(quiet, "[%s has answers by %s; the rest will be by %s]", output.name().c_str(),
           earlier.name.c_str(), now.name.c_str());
  else if (!earlier.fingerprint.empty() && earlier.fingerprint != now.fingerprint)
    notice(quiet,
           "[%s has answers by other weights of %s, another device, --kv, --block or version of "
           "riffle (%s); the rest will have %s]",
           output.name().c_str(), now.name.c_str(), earlier.fingerprint.c_str(),
           now.fingerprint.c_str());
}

void say_earlier(const BatchInput& input, const BatchOutput& output, const Held& held, bool quiet) {
  const char* const name = output.name().c_str();
  if (output.retried() > 0)
    notice(quiet, "[%s: %zu failed lines are answered again, %zu answers are kept]", name,
           output.retried(), held.n + output.moved());
  if (const size_t ahead = output.held().ahead.size() - output.moved())
    notice(quiet, "[%zu finished answers wait for their turn in %s]", ahead,
           output.ahead_path().c_str());
  if (held.n && output.retried() == 0 && input.counted())
    notice(quiet, "[resuming %s: %zu of %zu lines have a record]", name, held.n, input.total());
  else if (held.n && output.retried() == 0)
    notice(quiet, "[resuming %s: %zu lines have a record]", name, held.n);
}

void say_order(const BatchOptions& o, const BatchInput& input, const BatchOutput& output,
               const Held& held) {
  if (!o.unordered && (input.fills_gaps() || !held.in_order))
    notice(o.common.quiet, "[%s is not in input order: the new records follow the earlier ones]",
           output.name().c_str());
}

int exit_code(size_t failed) { return failed ? EXIT_LINES : EXIT_OK; }

PrefixCache open_prefix_cache(const BatchOptions& o) {
  if (o.prefix_cache.empty()) return nullptr;
  riffle_prefix_cache* cache = nullptr;
  char err[1024] = "";
  if (riffle_prefix_cache_open(o.prefix_cache.c_str(), o.prefix_cache_size, &cache, err,
                               sizeof err) != RIFFLE_OK)
    throw Exit(EXIT_RUN, std::string("--prefix-cache ") + err);
  return PrefixCache(cache);
}

// Tells whether requests of this context can take over KV; says why not.
bool takes_over(riffle_context* context, bool quiet) {
  const Session empty = create_session(context);
  riffle_session* fork = nullptr;
  const riffle_status status = riffle_session_fork(empty.get(), 0, &fork);
  riffle_session_free(fork);
  if (status == RIFFLE_UNSUPPORTED)
    notice(quiet, "[the prefix cache is not used: %s]", riffle_context_error(context));
  else check(status, context);
  return status == RIFFLE_OK;
}

void say_saved(const BatchOptions& o, riffle_prefix_cache* cache) {
  const Facts facts(riffle_prefix_cache_info(cache));
  if (const std::string text = facts.text("notice"); !text.empty())
    notice(o.common.quiet, "[%s]", text.c_str());
  if (const uint64_t saved = facts.count("saved"))
    notice(o.common.quiet, "[%llu prefixes of %llu tokens saved in %s]",
           static_cast<unsigned long long>(saved),
           static_cast<unsigned long long>(facts.count("saved_tokens")), o.prefix_cache.c_str());
}

// Prints how the run ended. Returns the exit code.
int say_end(const BatchOptions& o, const BatchRunner& runner, const BatchOutput& output,
            const BatchProgress& progress, const Held& held) {
  const bool quiet = o.common.quiet, stopped = interrupted();
  notice(quiet, stopped ? "[stopped; %s]" : "[%s]", progress.summary().c_str());
  for (const std::string& text : progress.notices()) notice(quiet, "[%s]", text.c_str());
  if (!stopped) {
    if (held.failed) notice(quiet, "[%zu errors among the earlier lines]", held.failed);
    return exit_code(progress.counts.errors + held.failed);
  }
  if (const std::string path = output.ahead_path(); runner.dropped() && !path.empty())
    notice(quiet, "[kept %zu answers in %s: an earlier line is not finished yet]", runner.dropped(),
           path.c_str());
  else if (runner.dropped())
    notice(quiet, "[dropped %zu answers: an earlier line is not finished yet]", runner.dropped());
  if (o.out != "-")
    notice(quiet, "[the same command%s continues from here]",
           o.restart ? " without --restart" : "");
  return EXIT_INTERRUPTED;
}

// Answers the lines that are left. Returns the exit code.
int answer_lines(BatchOptions& o, BatchInput& input, BatchOutput& output, const Held& held) {
  const bool quiet = o.common.quiet;
  PrefixCache cache = open_prefix_cache(o);
  const Model model = load_model(o.common);
  riffle_plan_scheduler(model.get(), o.common.options.get(), o.max_seqs);
  say_unread_settings(o.common);
  say_unread_thinking(model.get(), o.common);
  const Context context = create_context(model.get(), o.common.options, quiet);
  const std::string said = say_notice(context.get(), quiet);
  InterruptGuard guard(context.get());
  if (cache && !takes_over(context.get(), quiet)) cache.reset();
  const AnsweringModel by = answering_model(o, model.get(), context.get());
  say_other_model(output, held.model, by, quiet);
  BatchProgress progress(context.get(), input.counted() ? input.remaining() : 0, cache != nullptr,
                         quiet);
  progress.counts.held = held.n;
  BatchRunner runner(model.get(), by, context.get(), o.common.options, o.unordered, input, output,
                     progress, cache.get());
  output.begin();  // not before the model and the flags have been checked
  runner.run();
  progress.finish();
  output.finish(!interrupted());
  say_notice(context.get(), quiet, said);
  if (cache) say_saved(o, cache.get());
  if (!input.counted()) say_order(o, input, output, held);
  return say_end(o, runner, output, progress, held);
}

BatchDefaults defaults_of(const BatchOptions& o) {
  BatchDefaults defaults{o.common.options, o.ignore_unknown, o.common.seed};
  const Thinking& thinking = o.common.thinking;
  defaults.options.set("thinking", thinking.enabled);
  defaults.options.set("reasoning-effort", thinking.effort ? thinking.effort : "");
  defaults.options.set("date", today());
  return defaults;
}

int run_batch(BatchOptions& o) {
  const bool quiet = o.common.quiet;
  // A reader that goes away, or a limit on the size of files, is an error of the output like any
  // other.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  if (o.in == "-" && is_terminal(STDIN_FILENO))
    notice(quiet,
           "[waiting for lines on standard input, one request a line; Ctrl-D at the beginning of a "
           "line ends it; -i FILE reads a file]");
  BatchInput input(o.in, o.shard, defaults_of(o));
  BatchOutput output(o.out, o.errors, input,
                     o.restart        ? Earlier::DROP
                     : o.retry_errors ? Earlier::RETRY_ERRORS
                                      : Earlier::KEEP,
                     quiet);
  const Held held = held_by(output);
  input.survey(output.held(), output.name());
  say_earlier(input, output, held, quiet);
  if (held.n && input.counted() && input.remaining() == 0) {
    output.begin();
    output.finish(true);
    notice(quiet, "[nothing is left to do; %zu errors among the lines%s]", held.failed,
           held.failed ? "; --retry-errors answers these lines again" : "");
    return exit_code(held.failed);
  }
  if (input.counted()) say_order(o, input, output, held);
  return answer_lines(o, input, output, held);
}

const char* const kNotes =
    R"(A line: {"custom_id":"a","url":"/v1/completions","body":{"prompt":"...","max_tokens":32}},
or messages in place of prompt. After an interruption, the same command continues where it stopped.
Exit code 6: some lines got an error record; --retry-errors answers them again.)";

const char* const kDetails =
    R"(Without --host-mem, the KV cache may take three quarters of the machine's memory.
Fields of body: prompt or messages, model, max_tokens or max_completion_tokens, temperature,
top_k, top_p, min_p, seed, stop, ignore_eos, reasoning_effort (low, medium, high; none: no
reasoning), chat_template_kwargs with enable_thinking and reasoning_effort (both only if the
template uses them), tools and tool_choice (calls are in tool_calls). Other fields of OpenAI and
vLLM are accepted if they change nothing (stream false), ignored with a notice if no answer depends
on them (user, metadata), and refused if the answer would change; man riffle-batch has the table. A
message has role and content; an assistant's may also have reasoning_content, and if it comes last,
it is continued. A list of prompts gets a choice for each. A flag sets a field for the lines that
leave it out. The loaded model answers all lines, whatever model they name. A bad line gets an error
record, and the other lines are answered.
A record: {"id", "custom_id", "line", "response", "error"}; response or error is null.
A model's reasoning is in reasoning_content, next to content.
response.body has the fields of OpenAI's records, and riffle: finish, seed, tokens reused, KV read,
counts and seconds.
Seeds: a line without a seed gets its own seed, which its record names (response.body.riffle.seed).
That seed is random, or with --seed N the upper 53 bits of output number LINE of SplitMix64 with the
state N. A line with the recorded seed gives the same text again.)";

void add_output_flags(CLI::App& command, BatchOptions& o) {
  add_text(
      command, "-o,--output", o.out,
      "JSONL file to write; if it exists, its records are kept and the rest is added; -: stdout")
      .value("FILE")
      .shows_default();
  add_text(command, "--errors", o.errors,
           "JSONL file for the records of lines that failed; default: they go into the output, in "
           "order")
      .group(kRequestsGroup)
      .value("FILE")
      .check(not_empty);
}

void add_cache_flags(CLI::App& command, BatchOptions& o) {
  const Flag cache = add_text(command, "--prefix-cache", o.prefix_cache,
                              "folder that keeps the shared beginnings of prompts for other runs; "
                              "it is created if it is missing")
                         .value("DIR")
                         .check(not_empty)
                         .group(kRequestsGroup);
  add_text(
      command, "--prefix-cache-size",
      [&o](const std::string& text) {
        const char* const flag = "--prefix-cache-size";
        o.prefix_cache_size = parse_size(flag, text, Unit::BYTES);
        if (o.prefix_cache_size == 0) refuse_value(flag, "is 0, expected a size such as 100G");
      },
      "largest size of the folder, such as 100G; prefixes least recently used are deleted first; "
      "default: half of the disk's free space")
      .value("SIZE")
      .needs(cache)
      .group(kRequestsGroup);
}

// Adds flags for the lines that are answered, the number at once, and the records that are kept.
void add_line_flags(CLI::App& command, BatchOptions& o) {
  add_switch(command, "--ignore-unknown", o.ignore_unknown,
             "answer lines that have fields unknown to riffle, and ignore these fields")
      .group(kRequestsGroup);
  add_number(
      command, "--max-seqs,--parallel", o.max_seqs,
      "number of lines answered at once; with a named --selector, and on a CPU, it changes no "
      "answer; default: 8, or fewer if memory is short")
      .value("N")
      .range(1, 256);
  add_switch(command, "--unordered", o.unordered,
             "write records as they finish, not in the order of the lines")
      .group(kRequestsGroup);
  const Flag restart =
      add_switch(command, "--restart", o.restart, "start over and overwrite the output");
  add_switch(command, "--retry-errors", o.retry_errors,
             "answer again the lines that have an error record in the output; their records keep "
             "their places, and all answers are kept")
      .group(kRequestsGroup)
      .excludes(restart);
  add_text(
      command, "--shard", [&o](const std::string& text) { o.shard = parse_shard(text); },
      "answer part I of N of the file; the outputs of all parts, one after the other, are the "
      "output of a single run")
      .group(kRequestsGroup)
      .value("I/N");
}

}  // namespace

void add_batch(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BatchOptions>();
  CLI::App& command = add_command(
      app, "batch", "Answer the lines of a JSONL file (OpenAI's batch format), in order");
  set_notes(command, kNotes, kDetails);
  add_text(command, "-i,--input", o->in, "JSONL file to read; -: stdin")
      .value("FILE")
      .shows_default();
  add_output_flags(command, *o);
  add_line_flags(command, *o);
  add_cache_flags(command, *o);
  add_setting_flags(command, "scheduler", o->common.options, false);
  add_common_flags(
      command, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | THINK_FLAGS | WEIGHTS_FLAG);
  when_parsed(command, [o, &chosen] { chosen = [o] { return run_batch(*o); }; });
}

}  // namespace riffle::cli
