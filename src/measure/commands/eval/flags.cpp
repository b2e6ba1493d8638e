// The flags of riffle eval.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/help.h"
#include "measure/commands/commands.h"
#include "measure/commands/eval/eval.h"
#include "measure/commands/eval/settings.h"
#include "measure/commands/eval/tasks.h"

namespace riffle::cli {
namespace {

CLI::Range some() { return {1, 1 << 24}; }
CLI::Range none_or_some() { return {0, 1 << 24}; }

void add_notes(CLI::App& sub) {
  set_notes(sub, "",
            "Tasks: " + eval::task_names(", ") +
                ". Each question of common and frequent has a document of its own.\n"
                "A SPEC is a selector and fields with one or more values. Several lists give all "
                "combinations. Fields: " +
                eval::sweep_fields() + ".");
}

void add_question_flags(CLI::App& sub, EvalOptions& o) {
  o.tasks =
      "passkey,magic,person,thing,vars,kv,multikey,multivalue,multiquery,passage,needle,summary";
  sub.add_option("--text", o.text_paths,
                 "text to hide facts in, which the model has not seen; default: the demo's")
      ->type_name("FILE...");
  sub.add_option("--length", o.lengths,
                 "lengths of whole prompts; default: 8192,16384,30000 if the text allows")
      ->type_name("N,...");
  sub.add_option("--questions", o.questions,
                 "number of questions per length, dealt evenly to the tasks")
      ->type_name("N")
      ->check(some())
      ->capture_default_str();
  sub.add_option(
         "--tasks", o.tasks,
         "kinds of questions; --help-all lists them; default: all except common and frequent")
      ->type_name("NAME,...");
  sub.add_option("--questions-per-doc", o.questions_per_document,
                 "number of questions that share a document")
      ->group(kMeasureGroup)
      ->type_name("N")
      ->check(some())
      ->capture_default_str();
  sub.add_option("--answer-tokens", o.answer_tokens, "most tokens of an answer")
      ->group(kMeasureGroup)
      ->type_name("N")
      ->check(some())
      ->capture_default_str();
  sub.add_option("--seed", o.seed, "seed of documents and questions")
      ->group(kMeasureGroup)
      ->type_name("N")
      ->capture_default_str();
}

struct Flags {
  CLI::Option *coverage, *dense_only;
};

Flags add_measured_flags(CLI::App& sub, EvalOptions& o) {
  Flags flags{};
  sub.add_option(
         "--nll", o.nll_tokens,
         "number of tokens at the end of each document that are predicted one by one; 0: none")
      ->group(kMeasureGroup)
      ->type_name("N")
      ->check(none_or_some())
      ->capture_default_str();
  flags.coverage = sub.add_flag("--coverage,!--no-coverage", o.coverage,
                                "measure the share of the attention weight that was read (slow)")
                       ->group(kMeasureGroup);
  flags.dense_only = sub.add_flag("--dense-only", o.dense_only,
                                  "only dense answers, and the nll of held-out text by position")
                         ->group(kMeasureGroup);
  sub.add_option(
         "--nll-segments", o.nll_segments,
         "with --dense-only: number of segments of 32768 tokens for the nll by position; 0: none")
      ->group(kMeasureGroup)
      ->type_name("N")
      ->check(none_or_some())
      ->capture_default_str();
  sub.add_option("--compare-dense-golden", o.reference_path,
                 "with --dense-only: JSON of reference figures to print next to the new ones")
      ->group(kMeasureGroup)
      ->type_name("FILE");
  sub.add_option("--out", o.out_path, "append a JSON line per finished row to this file")
      ->type_name("FILE");
  sub.add_option("--records", o.records_path, "append a JSON line per question to this file")
      ->group(kMeasureGroup)
      ->type_name("FILE");
  return flags;
}

// Returns --compare.
CLI::Option* add_setting_lists(CLI::App& sub, EvalOptions& o, const Flags& flags) {
  CLI::Option* sweep =
      sub.add_option("--sweep", o.sweep,
                     "settings to run on the same KV, such as "
                     "\"psa:epsilon=0.5,0.9;topk:budget=0.1\"; default: the one that flags set")
          ->type_name("SPEC;...")
          ->group(kSelectorsGroup);
  CLI::Option* compare =
      sub.add_option(
             "--compare", o.compare_spec,
             "one table of all settings, with coverage, and what each selector must read to "
             "keep the answers; without SPEC: every selector at several settings")
          ->type_name("[SPEC;...]")
          ->expected(0, 1)
          ->excludes(sweep)
          ->excludes(flags.dense_only)
          ->group(kSelectorsGroup);
  sub.add_option("--report", o.report_path,
                 "with --compare: tables, curves and heat maps as one HTML file; or FILE.svg: the "
                 "curves of answers kept")
      ->type_name("FILE")
      ->needs(compare)
      ->group(kSelectorsGroup);
  sub.add_option("--heatmap", o.heat_maps,
                 "settings whose blocks read are drawn, such as \"psa:epsilon=0.5\", or none; "
                 "default with --report: each selector as its paper runs it")
      ->type_name("SETTING")
      ->take_all()
      ->needs(compare)
      ->group(kMeasureGroup);
  return compare;
}

}  // namespace

void add_eval(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<EvalOptions>();
  // Auto reads short texts whole. What it does with long ones is share.
  o->common.context.selection.selector = RIFFLE_SELECTOR_SHARE;
  CLI::App* sub = app.add_subcommand(
      "eval", "Measure a model: facts hidden in long text, answers dense and sparse, KV read, nll");
  add_notes(*sub);
  add_common_flags(
      *sub, o->common,
      CONTEXT_FLAGS | SELECTION_FLAGS | COMPARISON_FLAGS | JSON_FLAG | CHAT_FLAG | WEIGHTS_FLAG);
  sub->get_option("--json")->description("a JSON line per row on stdout in place of tables");
  add_question_flags(*sub, *o);
  const Flags flags = add_measured_flags(*sub, *o);
  CLI::Option* compare = add_setting_lists(*sub, *o, flags);
  sub->final_callback([o, compare, coverage = flags.coverage, &chosen] {
    for (const auto& [setting, flag] : o->common.selection_flags)
      if (flag->count() > 0) o->selection_given.push_back(setting);
    o->compare = compare->count() > 0;
    if (o->compare && coverage->count() == 0) o->coverage = true;
    chosen = [o] { return run_eval(*o); };
  });
}

}  // namespace riffle::cli
