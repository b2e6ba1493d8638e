// The flags of riffle eval.
#include <memory>

#include "cli/help.h"
#include "measure/commands/commands.h"
#include "measure/commands/eval/eval.h"
#include "measure/commands/eval/settings.h"
#include "measure/commands/eval/tasks.h"

namespace riffle::cli {
namespace {

constexpr int32_t kMost = 1 << 24;

void add_notes(CLI::App& command) {
  set_notes(command, "",
            "Tasks: " + eval::task_names(", ") +
                ". Each question of common and frequent has a document of its own.\n"
                "A SPEC is a selector and fields with one or more values. Several lists give all "
                "combinations. Fields: " +
                eval::sweep_fields() + ".");
}

void add_question_flags(CLI::App& command, EvalOptions& o) {
  o.tasks =
      "passkey,magic,person,thing,vars,kv,multikey,multivalue,multiquery,passage,needle,summary";
  add_texts(command, "--text", o.text_paths,
            "text to hide facts in, which the model has not seen; default: the demo's")
      .value("FILE...");
  add_text(command, "--length", o.lengths,
           "lengths of whole prompts; default: 8192,16384,30000 if the text allows")
      .value("N,...");
  add_number(command, "--questions", o.questions,
             "number of questions per length, dealt evenly to the tasks")
      .value("N")
      .range(1, kMost)
      .shows_default();
  add_text(command, "--tasks", o.tasks,
           "kinds of questions; --help-all lists them; default: all except common and frequent")
      .value("NAME,...");
  add_number(command, "--questions-per-doc", o.questions_per_document,
             "number of questions that share a document")
      .group(kMeasureGroup)
      .value("N")
      .range(1, kMost)
      .shows_default();
  add_number(command, "--answer-tokens", o.answer_tokens, "maximum number of tokens of an answer")
      .group(kMeasureGroup)
      .value("N")
      .range(1, kMost)
      .shows_default();
  add_number(command, "--seed", o.seed, "seed of documents and questions")
      .group(kMeasureGroup)
      .value("N")
      .shows_default();
}

struct Flags {
  Flag coverage, dense_only;
};

Flags add_measured_flags(CLI::App& command, EvalOptions& o) {
  Flags flags;
  add_number(command, "--nll", o.nll_tokens,
             "number of tokens at the end of each document that are predicted one by one; 0: none")
      .group(kMeasureGroup)
      .value("N")
      .range(0, kMost)
      .shows_default();
  flags.coverage = add_switch(command, "--coverage,!--no-coverage", o.coverage,
                              "measure the share of the attention weight that was read (slow)")
                       .group(kMeasureGroup);
  flags.dense_only = add_switch(command, "--dense-only", o.dense_only,
                                "only dense answers, and the nll of held-out text by position")
                         .group(kMeasureGroup);
  add_text(command, "--prefill-shares", o.prefill_shares,
           "read each prompt densely, and once more with --prefill-selector tiles for each "
           "--prefill-share given here; all answers are compared with dense ones after the dense "
           "prompt")
      .group(kMeasureGroup)
      .excludes(flags.dense_only)
      .excludes(flag_named(command, "--prefill-selector"))
      .excludes(flag_named(command, "--prefill-share"))
      .value("X,...");
  add_number(
      command, "--nll-segments", o.nll_segments,
      "with --dense-only: number of segments of 32768 tokens for the nll by position; 0: none")
      .group(kMeasureGroup)
      .value("N")
      .range(0, kMost)
      .shows_default();
  add_text(command, "--compare-dense-golden", o.reference_path,
           "with --dense-only: JSON of reference figures to print next to the new ones")
      .group(kMeasureGroup)
      .value("FILE");
  add_text(command, "--out", o.out_path, "append a JSON line per finished row to this file")
      .value("FILE");
  add_text(command, "--records", o.records_path, "append a JSON line per question to this file")
      .group(kMeasureGroup)
      .value("FILE");
  return flags;
}

// Returns --compare.
Flag add_setting_lists(CLI::App& command, EvalOptions& o, const Flags& flags) {
  Flag sweep = add_text(command, "--sweep", o.sweep,
                        "settings to run on the same KV, such as "
                        "\"psa:epsilon=0.5,0.9;topk:budget=0.1\"; default: the one set by flags")
                   .value("SPEC;...")
                   .group(kSelectorsGroup);
  Flag compare =
      add_text(command, "--compare", o.compare_spec,
               "one table of all settings, with coverage, and the KV that each selector must read "
               "to keep the answers; without SPEC: every selector at several settings")
          .value("[SPEC;...]")
          .values(0, 1)
          .excludes(sweep)
          .excludes(flags.dense_only)
          .group(kSelectorsGroup);
  add_text(command, "--report", o.report_path,
           "with --compare: tables, curves and heat maps as one HTML file; or FILE.svg: the "
           "curves of answers kept")
      .value("FILE")
      .needs(compare)
      .group(kSelectorsGroup);
  add_texts(command, "--heatmap", o.heat_maps,
            "settings to draw heat maps of, such as \"psa:epsilon=0.5\", or none; "
            "default with --report: each selector as its paper runs it")
      .value("SETTING")
      .needs(compare)
      .group(kMeasureGroup);
  return compare;
}

}  // namespace

void add_eval(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<EvalOptions>();
  // Selector auto would read short texts whole. For long texts it is share, in models where most
  // layers have windows with a quarter of the share (auto_share).
  o->common.options.set("selector", "share");
  CLI::App& command = add_command(
      app, "eval",
      "Measure a model: facts hidden in long text, answers dense and sparse, KV read, nll");
  add_notes(command);
  add_common_flags(
      command, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | COMPARISON_FLAGS | JSON_FLAG | CHAT_FLAG | WEIGHTS_FLAG);
  flag_named(command, "--json").help("a JSON line per row on stdout instead of tables");
  add_question_flags(command, *o);
  const Flags flags = add_measured_flags(command, *o);
  Flag compare = add_setting_lists(command, *o, flags);
  when_parsed(command, [o, compare, coverage = flags.coverage, &chosen] {
    for (const auto& [setting, flag] : o->common.selection_flags)
      if (flag.given()) o->selection_given.push_back(setting);
    o->compare = compare.given();
    if (o->compare && !coverage.given()) o->coverage = true;
    chosen = [o] { return run_eval(*o); };
  });
}

}  // namespace riffle::cli
