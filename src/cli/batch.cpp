// riffle batch: many prompts from a JSONL file, answers in the same order.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_set>

#include "cli/batch_format.h"

namespace riffle::cli {
namespace {

struct BatchOptions {
  CommonOptions common;
  std::string in = "-", out = "-";
  int parallel = 1;
};

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// Lines of a file, one at a time. A line longer than kMaxLineBytes is not kept.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // False at the end. number() is then the line's, from 1.
  bool next(std::string& line, bool& too_long) {
    line.clear();
    too_long = false;
    bool any = false;
    for (;;) {
      if (at_ == end_) {
        // read, not fread: a line that came down a pipe is answered before the next has come.
        const ssize_t n = ::read(fd_, buffer_, sizeof buffer_);
        if (n < 0 && errno == EINTR && !interrupted()) continue;
        if (n < 0 && errno != EINTR) throw Exit(EXIT_RUN, std::string("input: cannot read: ") + std::strerror(errno));
        if (n < 0) return false;  // Ctrl-C: half a line is no line
        at_ = 0;
        end_ = static_cast<size_t>(n);
        if (n == 0) {
          if (any) ++number_;
          return any;
        }
      }
      any = true;
      const char* const from = buffer_ + at_;
      const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - at_));
      const size_t n = newline ? static_cast<size_t>(newline - from) : end_ - at_;
      at_ += n + (newline ? 1 : 0);
      if (line.size() + n > kMaxLineBytes) too_long = true;
      if (too_long) line.clear();
      else line.append(from, n);
      if (newline) {
        ++number_;
        return true;
      }
    }
  }
  size_t number() const { return number_; }

 private:
  int fd_;
  char buffer_[1 << 16];
  size_t at_ = 0, end_ = 0, number_ = 0;
};

// A line on its way to an answer.
struct Job {
  size_t line_number = 0;
  BatchRequest request;
  std::vector<int32_t> tokens;
  std::optional<BatchError> error;
  Session session;
  std::string text;
  riffle_result result{};
};

class Batch {
 public:
  explicit Batch(BatchOptions& o) : o_(o), in_(nullptr, std::fclose), out_(nullptr, std::fclose) {}

  int run() {
    open_input();
    model_ = load_model(o_.common);
    model_name_ = model_info(model_.get()).name;
    o_.common.context.n_sessions = o_.parallel;
    context_ = create_context(model_.get(), o_.common.context, o_.common.quiet);
    const std::string said = say_notice(context_.get(), o_.common.quiet);
    open_output();  // not before the model is known to be good: it empties the file
    InterruptGuard guard(context_.get());
    LineReader reader(in_ ? fileno(in_.get()) : STDIN_FILENO);
    std::string line;
    bool too_long = false;
    std::vector<Job> group;
    while (!interrupted() && reader.next(line, too_long)) {
      // A \r from another system, or a byte order mark at the very beginning, is no fault.
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (reader.number() == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
      if (!too_long && line.find_first_not_of(" \t") == line.npos) continue;
      Job job = prepare(line, too_long, reader.number());
      if (!job.error) ++waiting_;
      group.push_back(std::move(job));
      // Lines with errors take no place in the group, but they wait for their turn in the order.
      if (waiting_ == static_cast<size_t>(o_.parallel) || group.size() >= 1024 || (waiting_ == 0 && group.size() >= 1))
        answer(group);
    }
    answer(group);
    say_notice(context_.get(), o_.common.quiet, said);
    if (interrupted()) {
      notice(o_.common.quiet, "[stopped after %zu answers and %zu errors]", answered_, failed_);
      return EXIT_INTERRUPTED;
    }
    notice(o_.common.quiet, "[%zu answers, %zu errors; %s]", answered_, failed_,
           stats_line(context_stats(context_.get())).c_str());
    return failed_ ? EXIT_RUN : EXIT_OK;
  }

 private:
  void open_input() {
    if (o_.in != "-") {
      in_.reset(std::fopen(o_.in.c_str(), "rb"));
      if (!in_) throw Exit(EXIT_RUN, o_.in + ": cannot open: " + std::strerror(errno));
    }
    struct stat a {
    }, b{};
    if (in_ && fstat(fileno(in_.get()), &a) == 0 && stat(o_.out.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino && S_ISREG(a.st_mode))
      throw Exit(EXIT_USAGE, "-o " + o_.out + " is the input file");
  }

  void open_output() {
    if (o_.out == "-") return;
    out_.reset(std::fopen(o_.out.c_str(), "wb"));
    if (!out_) throw Exit(EXIT_RUN, o_.out + ": cannot create: " + std::strerror(errno));
  }

  // Everything that can go wrong with a line before it takes the model.
  Job prepare(const std::string& line, bool too_long, size_t number) {
    Job job;
    job.line_number = number;
    try {
      if (too_long)
        throw BatchError{"line_too_long", text_of("line %zu: longer than %zu bytes", number, kMaxLineBytes), ""};
      job.request = parse_batch_line(line, number, o_.common);
      if (!seen_.insert(job.request.custom_id).second)
        throw BatchError{"dup_id", text_of("line %zu: field custom_id was used before", number), job.request.custom_id};
      const auto where = [&](const Exit& e) { return text_of("line %zu: %s", number, e.what()); };
      try {
        job.tokens = job.request.chat ? chat_tokens(model_.get(), job.request.messages)
                                      : tokenize(model_.get(), job.request.prompt, RIFFLE_TOKENIZE_BOS);
      } catch (const Exit& e) {
        throw BatchError{e.code() == EXIT_MEMORY ? "oom" : "bad_request", where(e), job.request.custom_id};
      }
    } catch (BatchError& e) {
      job.error = std::move(e);
    }
    return job;
  }

  void set_error(Job& job, riffle_status status, const char* text) {
    const char* code = status == RIFFLE_CONTEXT_FULL    ? "too_long"
                       : status == RIFFLE_OUT_OF_MEMORY ? "oom"
                       : status == RIFFLE_NO_SLOT       ? "no_slot"
                       : status == RIFFLE_BAD_TEXT      ? "bad_text"
                       : status == RIFFLE_BAD_ARGUMENT  ? "bad_request"
                                                        : "error";
    job.error =
        BatchError{code, text_of("line %zu: %s", job.line_number, text && *text ? text : riffle_status_name(status)),
                   job.request.custom_id};
    job.session.reset();
  }

  // Reads the prompt into a new session. False: the job has an error, or Ctrl-C came.
  bool prefill(Job& job) {
    job.text.clear();
    job.result = {};
    riffle_session* session = nullptr;
    riffle_status status = riffle_session_create(context_.get(), &session);
    job.session.reset(session);
    if (status == RIFFLE_OK) {
      Progress progress(text_of("line %zu: reading %zu tokens", job.line_number, job.tokens.size()), o_.common.quiet);
      status = riffle_prefill(session, job.tokens.data(), job.tokens.size(), Progress::callback, &progress);
    }
    if (status == RIFFLE_OK) return true;
    if (!(status == RIFFLE_ABORTED && interrupted())) set_error(job, status, riffle_context_error(context_.get()));
    return false;
  }

  static bool on_token(void* self, size_t index, int32_t, const char* piece, size_t n) {
    // No exception may cross the library; false ends this answer as unfinished.
    try {
      (*static_cast<std::vector<Job*>*>(self))[index]->text.append(piece, n);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  riffle_status generate(std::vector<Job*>& jobs) {
    std::vector<riffle_session*> sessions;
    std::vector<riffle_generate_options> options(jobs.size());
    std::vector<std::vector<const char*>> stops(jobs.size());
    std::vector<riffle_result> results(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      const BatchRequest& r = jobs[i]->request;
      sessions.push_back(jobs[i]->session.get());
      for (const std::string& s : r.stop) stops[i].push_back(s.c_str());
      riffle_generate_defaults(&options[i]);
      options[i].max_tokens = r.max_tokens;
      options[i].sampling = r.sampling;
      options[i].trim_start = r.chat;
      options[i].stop = stops[i].data();
      options[i].n_stop = stops[i].size();
    }
    const riffle_status status = riffle_generate_many(context_.get(), sessions.data(), options.data(), jobs.size(),
                                                      on_token, &jobs, results.data());
    for (size_t i = 0; i < jobs.size(); ++i) jobs[i]->result = results[i];
    return status;
  }

  void answer(std::vector<Job>& group) {
    std::vector<Job*> ready;
    for (Job& job : group)
      if (!job.error && prefill(job)) ready.push_back(&job);
      else if (interrupted()) break;
    if (!ready.empty() && !interrupted()) {
      const riffle_status status = generate(ready);
      // What is too much for a group may do one by one; what fails alone is that line's own fault.
      if (status != RIFFLE_OK && !interrupted()) {
        const bool alone = ready.size() == 1;
        const std::string text = riffle_context_error(context_.get());
        for (Job* job : ready) job->session.reset();
        for (Job* job : ready) {
          if (interrupted()) break;
          std::vector<Job*> one{job};
          if (alone) set_error(*job, status, text.c_str());
          else if (prefill(*job))
            if (const riffle_status s = generate(one); s != RIFFLE_OK)
              set_error(*job, s, riffle_context_error(context_.get()));
        }
      }
    }
    for (Job& job : group) {
      if (job.error) {
        ++failed_;
        write(batch_error_record(job.line_number, *job.error));
        continue;
      }
      // After Ctrl-C: the answers that were complete, up to the first that was not.
      const bool complete =
          job.session && job.result.finish != RIFFLE_FINISH_NONE && job.result.finish != RIFFLE_FINISH_ABORTED;
      if (!complete) {
        if (interrupted()) break;
        set_error(job, RIFFLE_INTERNAL, "the answer did not finish");
        ++failed_;
        write(batch_error_record(job.line_number, *job.error));
        continue;
      }
      ++answered_;
      write(batch_answer_record(job.line_number, job.request, model_name_, job.text, job.result, job.tokens.size(),
                                session_stats(job.session.get())));
    }
    group.clear();
    waiting_ = 0;
  }

  void write(const Json& record) {
    const std::string line = dump(record) + "\n";
    if (!out_) return write_out(line);
    if (std::fwrite(line.data(), 1, line.size(), out_.get()) != line.size() || std::fflush(out_.get()) != 0)
      throw Exit(EXIT_RUN, o_.out + ": cannot write: " + std::strerror(errno));
  }

  BatchOptions& o_;
  File in_, out_;  // NULL: stdin, stdout
  Model model_;
  Context context_;
  std::string model_name_;
  std::unordered_set<std::string> seen_;
  size_t waiting_ = 0, answered_ = 0, failed_ = 0;
};

}  // namespace

void add_batch(CLI::App& app, Command& chosen) {
  auto o = std::make_shared<BatchOptions>();
  CLI::App* sub = app.add_subcommand("batch", "Answer the lines of a JSONL file (OpenAI's batch format), in order");
  sub->footer(
      "A line: {\"custom_id\":\"a\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"...\",\"max_tokens\":32}}, or "
      "messages in place\n"
      "of prompt. Body: model, max_tokens, temperature, top_k, top_p, min_p, seed, stop. What a line leaves out comes "
      "from\n"
      "the flags. A bad line gets an error record and the rest goes on; the exit code is then 1.");
  sub->add_option("-i,--input", o->in, "JSONL file to read; -: stdin")->type_name("FILE")->capture_default_str();
  sub->add_option("-o,--output", o->out, "JSONL file to write; -: stdout")->type_name("FILE")->capture_default_str();
  sub->add_option("--parallel", o->parallel, "lines decoded together; the answers are the same for any number")
      ->type_name("N")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_common_flags(*sub, o->common, CONTEXT_FLAGS | SELECTION_FLAGS | SAMPLING_FLAGS | CHAT_FLAG | WEIGHTS_FLAG);
  sub->final_callback([o, &chosen] { chosen = [o] { return Batch(*o).run(); }; });
}

}  // namespace riffle::cli
