// Helpers for all subcommands: handles that free themselves, errors with exit codes, reading and
// writing text, progress, tables. Answers go to stdout, everything else to stderr.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/args.h"
#include "cli/conversation.h"
#include "cli/text.h"
#include "riffle.h"
#include "riffle_batch.h"
#include "riffle_steps.h"
#include "riffle_text.h"

namespace riffle::cli {

// ---- errors ----

enum ExitCode {
  EXIT_OK = 0,
  EXIT_RUN = 1,           // a run-time error
  EXIT_USAGE = 2,         // bad flags or option values
  EXIT_BAD_MODEL = 3,     // the model file is missing, damaged or of a kind riffle does not support
  EXIT_MEMORY = 4,        // out of memory, or --gpu-mem / --host-mem / --slots too small
  EXIT_CONTEXT_FULL = 5,  // the prompt does not fit the context
  EXIT_LINES = 6,         // batch: done, but lines failed
  EXIT_INTERRUPTED = 130  // Ctrl-C
};

// Ends the program with this code; main prints "riffle: text" to stderr (nothing if text is empty).
class Exit : public std::runtime_error {
 public:
  Exit(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

int exit_code_of(riffle_status status);

// Throw Exit with the handle's error text unless status is RIFFLE_OK.
void check(riffle_status status, const riffle_model* model);
void check(riffle_status status, const riffle_context* context);

// ---- handles ----

struct HandleDeleter {
  void operator()(riffle_model* p) const { riffle_model_free(p); }
  void operator()(riffle_context* p) const { riffle_context_free(p); }
  void operator()(riffle_session* p) const { riffle_session_free(p); }
  void operator()(riffle_prefix_cache* p) const { riffle_prefix_cache_free(p); }
  void operator()(riffle_scheduler* p) const { riffle_scheduler_free(p); }
};
// Declare them in the order model, context, session (or scheduler): C++ then destroys them in the
// order that the library requires.
using Model = std::unique_ptr<riffle_model, HandleDeleter>;
using Context = std::unique_ptr<riffle_context, HandleDeleter>;
using Session = std::unique_ptr<riffle_session, HandleDeleter>;
using PrefixCache = std::unique_ptr<riffle_prefix_cache, HandleDeleter>;
using Scheduler = std::unique_ptr<riffle_scheduler, HandleDeleter>;

// Returns -m, else $RIFFLE_MODEL, else the model shipped next to the executable. Throws
// Exit(EXIT_USAGE) if there is none.
std::string resolve_model_path(const std::string& flag);
// Returns the path of a file in the model's folder.
std::string beside_model(const std::string& model_path, const char* name);

// Returns the path of a text in which eval and demo hide facts: demo.txt next to the model, else
// the one shipped with riffle. Throws Exit.
std::string sample_text_path(const std::string& model_path);

// Reduces more than two threads for each CPU that the process may use to one, with a notice.
int32_t usable_threads(int32_t n, bool quiet);

// The next three throw Exit. load_model draws a progress bar and stores the path that it used in
// options.model_path.
Model load_model(CommonOptions& options);
// Prints one line on stderr, unless quiet, if device auto found a GPU that it cannot use, or no GPU
// although gpu_mem is given.
Context create_context(riffle_model* model, const Options& options, bool quiet);
// Returns the memory plan for these options, whether it fits or not; empty after other errors.
// status and error get those of riffle_plan_memory, and may be null.
Facts plan_of(riffle_model* model, const Options& options, riffle_status* status = nullptr,
              std::string* error = nullptr);
Session create_session(riffle_context* context);
// Throws Exit(EXIT_USAGE) if --logit-bias names a token that the model does not have.
void check_logit_bias(riffle_model* model, const CommonOptions& options);
// Prints to stderr the selection flags that were given and that the selector ignores.
void say_unread_settings(const CommonOptions& options);

Facts model_info(const riffle_model* model);
// Returns the name in the model's file, or the last part of its path.
std::string model_name(const riffle_model* model, const std::string& path);
Facts context_stats(riffle_context* context);
// Prints the parts of riffle_context_notice that are not in `said` to stderr: before an answer,
// since they affect how far it can be trusted, and again after it, since memory is pinned while a
// prompt is read. Returns the whole notice.
std::string say_notice(const riffle_context* context, bool quiet, const std::string& said = "");
Facts session_stats(riffle_session* session);

// ---- text and tokens ----

// flags: RIFFLE_TOKENIZE_*. Throws Exit.
std::vector<int32_t> tokenize(riffle_model* model, std::string_view text, uint32_t flags);
std::string detokenize(riffle_model* model, const std::vector<int32_t>& tokens);
std::string token_bytes(riffle_model* model, int32_t token);

std::string read_file(const std::string& path);  // "-" is stdin. Throws Exit(EXIT_RUN).
std::string read_stdin();

// Parses a text that is untrusted. Throws std::runtime_error with the reason.
Json parse_json(std::string_view text);

// Joins a document and a question into one message (riffle_document_question).
std::string with_document(const std::string& document, std::string_view question);
// Returns the tokens with which the prompts of all questions begin (riffle_document_tokens).
std::vector<int32_t> document_tokens(riffle_model* model, const std::string& document,
                                     const std::string& system, bool message,
                                     const Options& options);

// Writes to stdout and flushes it; throws Exit(EXIT_RUN) if that fails (disk full).
void write_out(std::string_view text);

// ---- interruption ----

// While one lives, the first Ctrl-C (SIGINT, SIGTERM, SIGHUP) calls riffle_abort(context) and sets
// interrupted(); the second ends the process with 130 at once. With a NULL context, the first only
// sets the flag. EndsBy::TERM: only a second SIGTERM or SIGHUP ends the process; Ctrl-C only
// requests an abort. Only one may live at a time.
class InterruptGuard {
 public:
  enum class EndsBy : uint8_t { ANY, TERM };
  explicit InterruptGuard(riffle_context* context);
  InterruptGuard(riffle_context* context, EndsBy ends_by);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};
bool interrupted();        // a Ctrl-C came since the last clear
bool terminated();         // one of them was no SIGINT; clear_interrupted does not clear this
void clear_interrupted();  // also withdraws a riffle_abort that found nothing to stop

// ---- terminal ----

bool is_terminal(int fd);
bool color_ok(int fd);  // a terminal, no NO_COLOR, TERM not dumb

// Prints a notice of one line to stderr unless quiet; dimmed on a terminal.
[[gnu::format(printf, 2, 3)]] void notice(bool quiet, const char* format, ...);

// A progress bar on stderr. On a terminal it is drawn if the work takes longer than a moment, and
// erased at the end. Elsewhere it prints a plain line every line_seconds. Pass callback and `this`
// to riffle functions; callback returns false after Ctrl-C.
class Progress {
 public:
  Progress(std::string label, bool quiet, double line_seconds = 10);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Loading, converting and uploading weights have labels of their own; other work has the given
  // one.
  static bool callback(void* self, const riffle_progress* p);
  void update(double done, double total);  // for work counted here, e.g. questions of an eval
  // Returns true if the bar would be drawn now. show() draws it with another label. total 0: not
  // known, so no bar.
  bool due() const;
  void show(std::string label, double done, double total);
  void clear();  // before other output to the terminal; the next update draws the bar again
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Mode { SILENT, LINES, BAR };
  std::string label_;
  Mode mode_;
  double line_seconds_;
  Clock::time_point start_, last_;
  size_t drawn_ = 0;  // columns on the line now
  bool converting_ = false;
};

// A table with aligned columns. The first row is the header. The first column is left-aligned, the
// others right-aligned. Cells are one line each: control characters in them are shown as escapes.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { add(std::move(header)); }
  void add(std::vector<std::string> row);
  std::string text(bool all_left = false) const;
  void print() const { write_out(text()); }
  void print_left() const { write_out(text(true)); }  // names and values: every column left-aligned

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string human_bytes(double bytes);  // "28.6 MiB"

// ---- statistics and JSON ----

// Shares in percent; NaN where nothing was counted (to JSON: null).
double kv_read_pct(const Facts& stats);
double pool_hit_pct(const Facts& stats);
double tiles_read_pct(const Facts& stats);  // NaN if no prompt chose tiles
double prefill_rate(const Facts& stats);    // tokens/s
double decode_rate(const Facts& stats);

const char* finish_name(riffle_finish finish);  // "stop", "length", "context", "aborted", "none"
std::string percent(double value);              // "9.7%", or "-" for NaN
std::string stats_line(const Facts& stats);
std::string seed_text(const Options& answer);  // "seed 17"; "" if the answer is greedy

Json stats_json(const Facts& stats);  // counters, with rates and percentages
Json selection_json(const Options& options);
Json context_json(const Options& options);
void print_json(const Json& json);  // dump and a newline to stdout

}  // namespace riffle::cli
