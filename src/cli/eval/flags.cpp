// The flags of riffle eval.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/eval/eval.h"
#include "cli/eval/settings.h"
#include "cli/eval/tasks.h"

namespace riffle::cli {

void add_eval(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<EvalOptions>();
  CLI::App* sub = app.add_subcommand(
      "eval", "Measure a model: facts hidden in long text, answers dense and sparse, KV read, nll");
  add_common_flags(*sub, o->common,
                   CONTEXT_FLAGS | SELECTION_FLAGS | JSON_FLAG | CHAT_FLAG | WEIGHTS_FLAG);
  sub->get_option("--json")->description("a JSON line per row on stdout in place of tables");
  const auto count = CLI::Range(0, 1 << 24);
  const auto some = CLI::Range(1, 1 << 24);
  o->tasks =
      "passkey,magic,person,thing,vars,kv,multikey,multivalue,multiquery,passage,needle,summary";
  sub->add_option("--text", o->text_paths,
                  "text the model has not seen, to hide facts in; default: the demo's")
      ->type_name("FILE...");
  sub->add_option("--length", o->lengths,
                  "tokens of a whole prompt; default 8192,16384,30000 where the text allows")
      ->type_name("N,...");
  sub->add_option("--tasks", o->tasks,
                  "kinds of questions, of " + eval::task_names(", ") +
                      "; common and frequent take a document a question")
      ->type_name("NAME,...")
      ->capture_default_str();
  sub->add_option(
         "--questions", o->questions,
         "questions per length, all tasks together; with fewer questions than tasks, tasks at "
         "even distances in the list get one each")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  sub->add_option("--questions-per-doc", o->questions_per_document,
                  "questions that share a document")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  sub->add_option("--answer-tokens", o->answer_tokens, "an answer ends after so many tokens")
      ->type_name("N")
      ->check(some)
      ->capture_default_str();
  CLI::Option* sweep =
      sub->add_option("--sweep", o->sweep,
                      "settings to run on the same KV, such as "
                      "\"psa:epsilon=0.5,0.9,stop=veto;topk:budget=0.05,0.1\"; "
                      "fields: " +
                          eval::sweep_fields() + "; default: the one the flags describe")
          ->type_name("SPEC;...");
  sub->add_option("--nll", o->nll_tokens,
                  "held-out tokens to predict one by one at the end of each document; 0: none")
      ->type_name("N")
      ->check(count)
      ->capture_default_str();
  CLI::Option* coverage = sub->add_flag("--coverage,!--no-coverage", o->coverage,
                                        "measure the share of attention truly covered (slow)");
  CLI::Option* dense_only = sub->add_flag("--dense-only", o->dense_only,
                                          "only dense answers, and held-out nll by position");
  sub->add_option("--windows", o->windows,
                  "with --dense-only: windows of 32768 tokens for nll by position; 0: none")
      ->type_name("N")
      ->check(count)
      ->capture_default_str();
  sub->add_option("--compare-dense-golden", o->reference_path,
                  "with --dense-only: JSON of figures to set beside")
      ->type_name("FILE");
  sub->add_option("--seed", o->seed, "of documents and questions")
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--out", o->out_path, "append a JSON line per finished row to this file")
      ->type_name("FILE");
  sub->add_option("--records", o->records_path, "append a JSON line per question to this file")
      ->type_name("FILE");
  const char* const heading = "Comparison of selectors";
  CLI::Option* compare = sub->add_option("--compare", o->compare_spec,
                                         "one table of settings, and what each selector must read "
                                         "for the same accuracy; SPEC as --sweep's, "
                                         "'*' behind a value marks a paper's default; without SPEC "
                                         "every selector at several settings (flags change "
                                         "what those leave open); "
                                         "measures coverage unless --no-coverage")
                             ->type_name("[SPEC;...]")
                             ->expected(0, 1)
                             ->excludes(sweep)
                             ->excludes(dense_only)
                             ->group(heading);
  sub->add_option("--report", o->report_path,
                  "with --compare: curves, tables and heat maps as one HTML file; FILE.svg: the "
                  "curves of answers kept alone")
      ->type_name("FILE")
      ->needs(compare)
      ->group(heading);
  sub->add_option("--heatmap", o->heat_maps,
                  "settings whose reading is drawn block by block, such as \"psa:epsilon=0.5\", or "
                  "none; default with "
                  "--report: each selector as its paper runs it")
      ->type_name("SETTING")
      ->take_all()
      ->needs(compare)
      ->group(heading);
  sub->final_callback([o, sub, compare, coverage, &chosen] {
    for (const auto& [setting, flag] : o->common.selection_flags)
      if (flag->count() > 0) o->selection_given.push_back(setting);
    o->compare = compare->count() > 0;
    if (o->compare && coverage->count() == 0) o->coverage = true;
    chosen = [o] { return run_eval(*o); };
  });
}

}  // namespace riffle::cli
