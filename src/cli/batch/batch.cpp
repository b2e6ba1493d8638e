// riffle batch: many prompts from a JSONL file, answers in the same order.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <optional>

#include "cli/batch/runner.h"
#include "cli/help.h"
#include "cli/reasoning.h"
#include "cli/settings.h"

namespace riffle::cli {
namespace {

struct BatchOptions {
  BatchOptions() { riffle_scheduler_defaults(&scheduler); }
  CommonOptions common;
  riffle_scheduler_options scheduler;
  std::string in = "-", out = "-", errors;  // errors "": in out, too
  int max_seqs = 0;                         // 0: usual_seqs
  bool unordered = false, restart = false, retry_errors = false, ignore_unknown = false;
  Shard shard;
  std::string prefix_cache;        // "": none
  uint64_t prefix_cache_size = 0;  // 0: PrefixFolder's own limit
};

// Returns the most sessions (up to 8) such that each still gets its full context, and the pool
// keeps most of its slots.
int usual_seqs(riffle_model* model, riffle_context_options options) {
  riffle_plan one{}, many{};
  one.struct_size = many.struct_size = sizeof(riffle_plan);
  options.n_sessions = 1;
  if (riffle_plan_memory(model, &options, &one, nullptr, 0) != RIFFLE_OK)
    return 1;  // the context will say why
  for (int n = 8; n > 1; n /= 2) {
    options.n_sessions = n;
    if (riffle_plan_memory(model, &options, &many, nullptr, 0) == RIFFLE_OK &&
        many.n_ctx == one.n_ctx && many.slots >= one.slots / 4 * 3)
      return n;
  }
  return 1;
}

int run_batch(BatchOptions& o) {
  const bool quiet = o.common.quiet;
  // A reader that goes away is an error of the output like any other, and so is a limit on the size
  // of files.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  if (o.in == "-" && is_terminal(STDIN_FILENO))
    notice(quiet,
           "[waiting for lines on standard input, one request a line; Ctrl-D at the beginning of a "
           "line ends it; -i FILE reads a file]");
  BatchInput input(o.in, o.shard,
                   {o.common.generate.max_tokens, sampling_of(o.common), o.common.thinking,
                    o.ignore_unknown, o.common.seed});
  BatchOutput output(o.out, o.errors, input,
                     o.restart        ? Earlier::DROP
                     : o.retry_errors ? Earlier::RETRY_ERRORS
                                      : Earlier::KEEP,
                     quiet);
  const size_t held = output.held().by_line.size(), held_failed = output.held().failed;
  const bool held_in_order = output.held().in_order;
  const std::string held_model = output.held().model;
  input.survey(output.held(), output.name());
  if (output.retried() > 0)
    notice(quiet, "[%s: %zu failed lines are answered again, %zu answers are kept]",
           output.name().c_str(), output.retried(), held + output.moved());
  if (const size_t ahead = output.held().ahead.size() - output.moved())
    notice(quiet, "[%zu finished answers wait for their turn in %s]", ahead,
           output.ahead_path().c_str());
  if (held && output.retried() == 0 && input.counted())
    notice(quiet, "[resuming %s: %zu of %zu lines are there]", output.name().c_str(), held,
           input.total());
  else if (held && output.retried() == 0)
    notice(quiet, "[resuming %s: %zu lines are there]", output.name().c_str(), held);
  const auto failed = [&](size_t now) { return now + held_failed ? EXIT_LINES : EXIT_OK; };
  if (held && input.counted() && input.remaining() == 0) {
    output.begin();
    output.finish(true);
    notice(quiet, "[nothing is left to do; %zu errors among the lines%s]", held_failed,
           held_failed ? "; --retry-errors answers these lines again" : "");
    return failed(0);
  }
  const auto say_order = [&] {
    if (!o.unordered && (input.fills_gaps() || !held_in_order))
      notice(quiet, "[%s is not in input order: the new records follow the earlier ones]",
             output.name().c_str());
  };
  if (input.counted()) say_order();

  std::optional<PrefixCache> cache;
  if (!o.prefix_cache.empty()) cache.emplace(o.prefix_cache, o.prefix_cache_size, quiet);
  const Model model = load_model(o.common);
  share_host_memory(model.get(), o.common.context);
  o.common.context.n_sessions = o.scheduler.max_seqs =
      o.max_seqs ? o.max_seqs : usual_seqs(model.get(), o.common.context);
  say_unread_settings(o.common);
  say_unread_thinking(model.get(), o.common);
  const Context context = create_context(model.get(), o.common.context, quiet);
  const std::string said = say_notice(context.get(), quiet);
  InterruptGuard guard(context.get());
  if (cache && !cache->open(model.get(), context.get(), o.common.context)) {
    notice(quiet, "[the prefix cache is not used: %s]", riffle_context_error(context.get()));
    cache.reset();
  }
  const std::string name = model_name(model.get(), o.common.model_path);
  if (!held_model.empty() && held_model != name)
    notice(quiet, "[%s has answers of %s; the rest are of %s]", output.name().c_str(),
           held_model.c_str(), name.c_str());
  BatchProgress progress(context.get(), input.counted() ? input.remaining() : 0, cache.has_value(),
                         quiet);
  progress.counts.held = held;
  BatchRunner runner(model.get(), name, context.get(), o.scheduler, o.unordered, input, output,
                     progress, cache ? &*cache : nullptr);
  output.begin();  // not before the model and the flags are known to be good
  runner.run();
  progress.finish();
  output.finish(!interrupted());
  say_notice(context.get(), quiet, said);
  if (cache) cache->trim();
  if (cache && cache->saved())
    notice(quiet, "[%zu prefixes of %llu tokens saved in %s]", cache->saved(),
           static_cast<unsigned long long>(cache->saved_tokens()), cache->folder().c_str());
  if (!input.counted()) say_order();
  const auto say_notices = [&] {
    for (const std::string& text : progress.notices()) notice(quiet, "[%s]", text.c_str());
  };
  if (interrupted()) {
    notice(quiet, "[stopped; %s]", progress.summary().c_str());
    say_notices();
    if (const std::string path = output.ahead_path(); runner.dropped() && !path.empty())
      notice(quiet, "[kept %zu answers in %s: an earlier line is not finished yet]",
             runner.dropped(), path.c_str());
    else if (runner.dropped())
      notice(quiet, "[dropped %zu answers: an earlier line is not finished yet]", runner.dropped());
    if (o.out != "-")
      notice(quiet, "[the same command%s goes on from here]",
             o.restart ? " without --restart" : "");
    return EXIT_INTERRUPTED;
  }
  notice(quiet, "[%s]", progress.summary().c_str());
  say_notices();
  if (held_failed) notice(quiet, "[%zu errors among the earlier lines]", held_failed);
  return failed(progress.counts.errors);
}

}  // namespace

void add_batch(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BatchOptions>();
  CLI::App* sub = app.add_subcommand(
      "batch", "Answer the lines of a JSONL file (OpenAI's batch format), in order");
  set_notes(
      *sub,
      R"(A line: {"custom_id":"a","url":"/v1/completions","body":{"prompt":"...","max_tokens":32}},
or messages in place of prompt. After an interruption, the same command continues where it ended.
Exit code 6: some lines got an error record; --retry-errors answers them again.)",
      R"(Without --host-mem, the KV cache may take three quarters of the machine's memory.
Fields of body: prompt or messages, model, max_tokens or max_completion_tokens, temperature,
top_k, top_p, min_p, seed, stop, ignore_eos, reasoning_effort (low, medium, high; none: no
reasoning), chat_template_kwargs with enable_thinking and reasoning_effort (both only if the
template uses them). Other fields of OpenAI and vLLM are accepted if they change nothing (n of 1,
no tools), ignored with a notice if no answer depends on them (user, metadata), and refused if
the answer would change; man riffle-batch has the table. A message has role and content; an
assistant's may also have reasoning_content, and if it comes last, it is continued. A list of
prompts gets a choice for each. A flag sets a field for the lines that leave it out. The loaded
model answers all lines, whatever model they name. A bad line gets an error record, and the other
lines are answered.
A record: {"id", "custom_id", "line", "response", "error"}; response or error is null.
A model's reasoning is in reasoning_content, next to content.
response.body has the fields of OpenAI's records, and riffle: finish, seed, tokens reused, KV read,
counts and seconds.
Seeds: a line without a seed gets its own seed, which its record names (response.body.riffle.seed).
That seed is random, or with --seed N the upper 53 bits of output number LINE of SplitMix64 with the
state N. A line with the recorded seed gives the same text again.)");
  sub->add_option("-i,--input", o->in, "JSONL file to read; -: stdin")
      ->type_name("FILE")
      ->capture_default_str();
  sub->add_option(
         "-o,--output", o->out,
         "JSONL file to write; if it exists, its records are kept and the rest is added; -: stdout")
      ->type_name("FILE")
      ->capture_default_str();
  sub->add_option("--errors", o->errors,
                  "JSONL file for the records of lines that failed; default: they go into the "
                  "output, in order")
      ->group(kRequestsGroup)
      ->type_name("FILE")
      ->check(not_empty);
  sub->add_flag("--ignore-unknown", o->ignore_unknown,
                "answer lines that have fields riffle does not know, without these fields")
      ->group(kRequestsGroup);
  sub->add_option("--max-seqs,--parallel", o->max_seqs,
                  "number of lines answered at once; the answers are the same for any number; "
                  "default: 8, or "
                  "fewer if memory is short")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  sub->add_flag("--unordered", o->unordered,
                "write records as they finish, not in the order of the lines")
      ->group(kRequestsGroup);
  CLI::Option* const restart =
      sub->add_flag("--restart", o->restart, "begin anew and overwrite the output");
  sub->add_flag("--retry-errors", o->retry_errors,
                "answer again the lines that have an error record in the output; their records "
                "keep their places, and all answers are kept")
      ->group(kRequestsGroup)
      ->excludes(restart);
  sub->add_option_function<std::string>(
         "--shard", [o](const std::string& text) { o->shard = parse_shard(text); },
         "answer part I of N of the file; the outputs of all parts, one after the other, are the "
         "output of a single run")
      ->group(kRequestsGroup)
      ->type_name("I/N");
  CLI::Option* const cache = sub->add_option("--prefix-cache", o->prefix_cache,
                                             "folder that keeps the shared beginnings of prompts "
                                             "for other runs; it is created if it is missing")
                                 ->type_name("DIR")
                                 ->check(not_empty)
                                 ->group(kRequestsGroup);
  sub->add_option_function<std::string>(
         "--prefix-cache-size",
         [o](const std::string& text) {
           const char* const flag = "--prefix-cache-size";
           o->prefix_cache_size = parse_size(flag, text, Unit::BYTES);
           if (o->prefix_cache_size == 0)
             throw CLI::ValidationError(flag, "is 0, expected a size such as 100G");
         },
         "largest size of the folder, such as 100G; prefixes least recently used are deleted "
         "first; default: half of the disk's free space")
      ->type_name("SIZE")
      ->needs(cache)
      ->group(kRequestsGroup);
  add_setting_flags(*sub, RIFFLE_OPTIONS_SCHEDULER, &o->scheduler, false);
  add_common_flags(
      *sub, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | THINK_FLAGS | WEIGHTS_FLAG);
  sub->final_callback([o, &chosen] { chosen = [o] { return run_batch(*o); }; });
}

}  // namespace riffle::cli
