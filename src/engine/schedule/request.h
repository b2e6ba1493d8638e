// A request of a scheduler, and its progress.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/scheduler.h"
#include "util/error.h"

namespace riffle {

struct Scheduler::Request {
  uint64_t id = 0;
  std::vector<int32_t> prompt;
  GenerateOptions options{};
  std::optional<Answer> answer;
  std::unique_ptr<Proposer> proposer;
  std::unique_ptr<Sequence> sequence;
  // Number of tokens of the prompt that the sequence holds; of these, from another request and from
  // `file`.
  size_t read = 0, reused = 0, loaded = 0;
  bool asked = false;                       // SchedulerHooks::begin was called
  std::shared_ptr<const SessionFile> file;  // to begin from; null: none, or it cannot be loaded
  std::string entry;                        // name of the file in the prefix cache
  bool unsaved = false;                     // an abort stopped the save of its prompt
  std::optional<Error> load_error;
  std::vector<int64_t> beginnings;  // where other prompts diverge from this one
  int32_t next = 0;                 // the token to step with
  int steps = 0, skips = 0, failures = 0;
  size_t calls = 0, shown = 0;  // calls of on_token: by this answer; by all attempts
  std::vector<int32_t> drawn;   // by all attempts; a new attempt takes the same
  std::optional<Error> error;   // error while a token was drawn

  void begin_answer(const Engine& engine) {
    answer.emplace(engine.model(), options, prompt);
    proposer = make_proposer(engine.lookup());
  }
};

}  // namespace riffle
