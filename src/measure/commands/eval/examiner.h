// Asks every setting a document's questions, on the same KV; eval.cpp describes the method.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cli/common.h"
#include "measure/commands/eval/distribution.h"
#include "measure/commands/eval/eval.h"
#include "measure/commands/eval/heatmap.h"
#include "measure/commands/eval/report.h"
#include "measure/commands/eval/tasks.h"
#include "riffle_measure.h"

namespace riffle::cli {

// The answer of one setting to one question.
struct EvalAnswer {
  bool right = false;
  bool in_order = false;      // the tokens are those of the reference, the end token included
  eval::Agreement agreement;  // with the dense answer; empty for the dense answer itself
  double read_pct = 0;
  std::string text;  // greedy text of the model
};

class Examiner {
 public:
  // settings: the first is dense. mapped: by setting, whether a heat map is drawn. Requires: model
  // and context outlive the examiner.
  Examiner(const EvalOptions& options, riffle_model* model, riffle_context* context, int n_ctx,
           std::vector<eval::Setting> settings, std::vector<bool> mapped);

  // Adds the results of a document's text and questions to rows (by setting). Returns the answers
  // as [question][setting]. is_first: the first document of its length, for which heat maps are
  // drawn.
  std::vector<std::vector<EvalAnswer>> run(const eval::Document& doc, const std::string& label,
                                           int length, bool is_first, std::vector<eval::Row>& rows);
  // Predicts tokens from their own beginning, densely.
  std::vector<riffle_score> score(const std::vector<int32_t>& tokens, Progress& progress);

  const std::vector<eval::Setting>& settings() const { return settings_; }
  const std::vector<eval::HeatMap>& maps() const { return maps_; }

 private:
  std::vector<std::vector<EvalAnswer>> ask(const eval::Document& doc, Progress& progress,
                                           std::vector<eval::Row>& rows);
  void read_text(const eval::Document& doc, Progress& progress, std::vector<eval::Row>& rows);
  // A setting's answer to a question: its tokens (the end token included), and for dense attention
  // the distribution from which each token was chosen.
  struct Spoken {
    std::vector<int32_t> tokens;
    std::vector<eval::Distribution> by;
    std::string text;
  };
  EvalAnswer answer(const eval::Question& q, Spoken& dense, bool is_dense);
  Spoken speak(size_t limit, bool keep_logits);
  eval::Agreement follow(const Spoken& dense);
  void describe(eval::HeatMap& map, const eval::Setting& setting, const eval::Question& question,
                const EvalAnswer& answer) const;

  const float* step(int32_t token);
  // Switches to the session from which a setting answers, and to the setting that reads its
  // prompts.
  void use(size_t setting);
  void use_session(size_t session);
  void truncate(size_t n) { check(riffle_session_truncate(current_, n), context_); }
  // Goes back to the first n tokens of a text with which the session begins. If the session cannot
  // be cut there, the missing tokens are read again.
  void go_back(const std::vector<int32_t>& text, size_t n);
  void rewind(const std::vector<int32_t>& prompt, size_t n);
  void prefill(const int32_t* tokens, size_t n, Progress* progress);
  // Makes steps run with the setting, and counts them until end().
  void begin(const eval::Setting& setting);
  eval::Usage end();
  static void on_report(void* user, const riffle_row_report* report);

  const EvalOptions& o_;
  riffle_model* model_;
  riffle_context* context_;
  int vocab_size_;
  int n_ctx_;
  bool has_pool_;
  std::vector<eval::Setting> settings_;
  std::vector<bool> mapped_;
  // Settings with the same prefill_share use one session, so that a document is read once for each
  // share. A setting with list positions has a session of its own, since its keys are stored before
  // RoPE.
  std::vector<Session> sessions_;
  std::vector<size_t> session_of_;  // by setting
  std::vector<size_t> reader_of_;   // by session: the setting that reads its prompts
  size_t session_ = 0;              // current_ in sessions_
  riffle_session* current_ = nullptr;
  eval::Usage usage_;               // since begin()
  double reread_bytes_ = 0;         // loaded to go back in a prompt, since begin()
  std::string selector_ = "dense";  // current selector
  std::vector<int32_t> prompt_;     // document and question being answered
  size_t document_end_ = 0;         // number of the prompt's tokens that belong to the document
  int length_ = 0;                  // length of the document, as --length says
  bool is_first_ = false;
  std::unique_ptr<eval::HeatMap> map_;  // map of the current answer
  std::vector<eval::HeatMap> maps_;
};

}  // namespace riffle::cli
