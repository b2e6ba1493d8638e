// Runs the lines of a batch through a scheduler and writes their records to the output.
#pragma once
#include <exception>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/batch/input.h"
#include "cli/batch/output.h"
#include "cli/batch/progress.h"
#include "cli/batch/record.h"
#include "cli/common.h"

namespace riffle::cli {

class BatchRunner {
 public:
  // by: the model as the records name it. scheduler: options of the scheduler. cache: null for
  // none. Throws Exit. Requires: all arguments outlive the runner.
  BatchRunner(riffle_model* model, AnsweringModel by, riffle_context* context,
              const Options& scheduler, bool unordered, BatchInput& input, BatchOutput& output,
              BatchProgress& progress, riffle_prefix_cache* cache);

  // Runs until every line has its record, or until Ctrl-C. After Ctrl-C, finished records are
  // written in input order up to the first line without one; later ones are kept next to the
  // output. Throws Exit.
  void run();

  size_t dropped() const { return dropped_; }  // number of answers after an unfinished line

 private:
  // A request of the scheduler: one prompt of a line on its way to its answer.
  struct Answer {
    uint64_t id = 0;
    bool under_way = false;
    size_t bytes = 0;                  // bytes of the prompt's tokens; 0 once it is concluded
    int32_t tokens_shown = 0;          // tokens passed to on_token; not the end token
    Facts end;                         // facts of riffle_request_end_fn
    riffle_status status = RIFFLE_OK;  // status with which it ended
  };
  // A line on its way to its record.
  struct Job {
    size_t line = 0;
    BatchRequest request;
    uint64_t seed = 0;
    std::vector<Answer> answers;  // none is added once the first is submitted
    size_t concluded = 0;         // number of concluded answers
    std::string record;
    bool over = false, failed = false;
    bool kept = false;     // kept for a later run
    bool earlier = false;  // answered by an earlier run
  };
  using Jobs = std::list<Job>;
  struct Place {
    Jobs::iterator job;
    size_t index = 0;  // index among its answers
    Answer& answer() const { return job->answers[index]; }
  };

  bool want_line() const;
  // Reads lines while there is room, without waiting for them if requests are running. Returns
  // false at the end of the input.
  bool read_ahead();
  void start(InputLine& in);
  void submit(Jobs::iterator job);  // throws errors that failure_of catches
  void submit(Place place);
  void drop_answers(Jobs::iterator job);  // called if the line has failed
  void conclude(Place place);             // called when an answer has ended
  BatchError error_of(const Place& place, riffle_status status, const std::string& text) const;
  void fail(Jobs::iterator job, const BatchError& error);
  void note_unread(const Job& job);
  void finish(Jobs::iterator job, std::string record, bool failed);
  void write_finished();
  void keep_finished();

  static bool on_token(void* self, uint64_t id, const riffle_token* token);
  static void on_end(void* self, uint64_t id, riffle_status status, const riffle_info* end);

  riffle_model* model_;
  riffle_context* context_;
  bool unordered_;
  BatchInput& input_;
  BatchOutput& output_;
  BatchProgress& progress_;
  AnsweringModel by_;
  bool reads_effort_, reads_thinking_;  // variables that the chat template reads
  size_t max_seqs_;
  Scheduler scheduler_;

  Jobs jobs_;  // in input order
  std::unordered_map<uint64_t, Place> under_way_;
  std::vector<Place> ended_;    // answers that ended in the running step
  std::exception_ptr failure_;  // exception of a callback
  size_t prompt_bytes_ = 0, held_ = 0, held_bytes_ = 0, dropped_ = 0;  // held_: finished jobs
  InputLine line_;
};

}  // namespace riffle::cli
