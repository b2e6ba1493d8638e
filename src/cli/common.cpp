#include "cli/common.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/text_file.h"
#include "riffle_session_file.h"

namespace riffle::cli {
namespace fs = std::filesystem;

// ---- errors ----

int exit_code_of(riffle_status status) {
  switch (status) {
    case RIFFLE_OK: return EXIT_OK;
    case RIFFLE_BAD_MODEL: return EXIT_BAD_MODEL;
    case RIFFLE_OUT_OF_MEMORY:
    case RIFFLE_NO_SLOT: return EXIT_MEMORY;
    case RIFFLE_CONTEXT_FULL: return EXIT_CONTEXT_FULL;
    case RIFFLE_ABORTED: return EXIT_INTERRUPTED;
    default: return EXIT_RUN;
  }
}

namespace {
[[noreturn]] void fail(riffle_status status, int code, const char* text) {
  // A user who presses Ctrl-C needs no error text.
  if (status == RIFFLE_ABORTED && interrupted()) throw Exit(EXIT_INTERRUPTED, "");
  throw Exit(code, text && *text ? text : riffle_status_name(status));
}
}  // namespace

void check(riffle_status status, const riffle_model* model) {
  if (status != RIFFLE_OK) fail(status, exit_code_of(status), riffle_model_error(model));
}
void check(riffle_status status, const riffle_context* context) {
  if (status == RIFFLE_OK) return;
  const std::string hint = status == RIFFLE_CONTEXT_FULL ? " (-c sets its length)" : "";
  fail(status, exit_code_of(status), (riffle_context_error(context) + hint).c_str());
}

// ---- handles ----

namespace {
// Returns a file of the shipped model's folder; "" if there is none.
std::string shipped_file(const char* name) {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  // build/riffle in the repository; PREFIX/bin/riffle when installed; a dist folder with the binary
  // at its top.
  for (const fs::path& base : {here / "..", here / "../share/riffle", here}) {
    const fs::path file = base / "models/riffle-27m-32k" / name;
    if (fs::exists(file, error)) return file.lexically_normal().string();
  }
  return "";
}
}  // namespace

std::string resolve_model_path(const std::string& flag) {
  if (!flag.empty()) return flag;
  if (const char* env = std::getenv("RIFFLE_MODEL"); env && *env) return env;
  const std::string shipped = shipped_file("riffle-27m-32k-q8_0.gguf");
  if (!shipped.empty()) return shipped;
  throw Exit(EXIT_USAGE, "no model: give one with -m PATH or in the environment as RIFFLE_MODEL");
}

std::string beside_model(const std::string& model_path, const char* name) {
  std::error_code error;
  const fs::path path = model_path;
  return ((fs::is_directory(path, error) ? path : path.parent_path()) / name).string();
}

std::string sample_text_path(const std::string& model_path) {
  std::error_code error;
  const std::string beside = beside_model(model_path, "demo.txt");
  const std::string path = fs::exists(beside, error) ? beside : shipped_file("demo.txt");
  if (path.empty()) throw Exit(EXIT_USAGE, "no text to hide facts in: give one with --text FILE");
  return path;
}

namespace {
bool is_session(const std::string& path) {
  riffle_session_file* file = nullptr;
  const riffle_status status = riffle_session_file_open(path.c_str(), &file, nullptr, 0);
  riffle_session_file_free(file);
  return status == RIFFLE_OK;
}
}  // namespace

int32_t usable_threads(int32_t n, bool quiet) {
  // Threads spin while they wait, so having far more threads than CPUs slows each step down.
  const int32_t cpus = riffle_usable_cpus();
  if (n <= 2 * cpus) return n;
  notice(quiet, "[--threads %d: this process may use %d CPU%s; riffle uses %d thread%s]", n, cpus,
         cpus == 1 ? "" : "s", cpus, cpus == 1 ? "" : "s");
  return cpus;
}

Model load_model(CommonOptions& options) {
  Options& o = options.options;
  const auto threads = static_cast<int32_t>(o.count("threads"));
  if (const int32_t usable = usable_threads(threads, options.quiet); usable != threads)
    o.set("threads", usable);
  options.model_path = resolve_model_path(options.model_path);
  InterruptGuard guard(nullptr);
  Progress progress("loading model", options.quiet);
  o.set_progress(Progress::callback, &progress);
  riffle_model* model = nullptr;
  char err[1024] = "";
  const riffle_status status =
      riffle_model_load(options.model_path.c_str(), o.get(), &model, err, sizeof err);
  o.set_progress(nullptr, nullptr);
  progress.finish();
  if (status == RIFFLE_BAD_MODEL && is_session(options.model_path))
    throw Exit(EXIT_BAD_MODEL,
               "-m " + options.model_path + ": found a session of riffle, expected " +
                   kModelFormats + "; riffle info " + options.model_path +
                   " shows the session, and run --session or chat --session uses it");
  if (status != RIFFLE_OK) {
    // The name is known, but the model's vocabulary lacks a token of that format.
    if (std::string_view(err).starts_with("--chat-template")) throw Exit(EXIT_USAGE, err);
    const bool model = (status == RIFFLE_IO || status == RIFFLE_BAD_MODEL) &&
                       !std::strstr(err, "Git LFS");  // also for a file in a folder
    if (const std::string what = model ? wrong_model(options.model_path) : ""; !what.empty())
      throw Exit(EXIT_BAD_MODEL, what);
    const bool file =
        status == RIFFLE_IO || status == RIFFLE_UNSUPPORTED || status == RIFFLE_BAD_ARGUMENT;
    fail(status, file ? EXIT_BAD_MODEL : exit_code_of(status), err);
  }
  return Model(model);
}

namespace {
// Prints why device auto does not use a GPU, if there is a GPU that it cannot use. On machines
// without a GPU only `riffle info` reports that.
void say_no_gpu(riffle_model* model, const Options& options) {
  if (!options.is("device", "auto")) return;
  riffle_status status = RIFFLE_OK;
  const Facts plan = plan_of(model, options, &status);
  if (status != RIFFLE_OK || plan.text("device_note").empty() || plan.on("device_memory") ||
      plan.on("no_driver"))
    return;
  notice(false, "running on the CPU: %s", plan.text("device_note").c_str());
}
}  // namespace

Facts plan_of(riffle_model* model, const Options& options, riffle_status* status,
              std::string* error) {
  riffle_info* plan = nullptr;
  char err[1024] = "";
  const riffle_status s = riffle_plan_memory(model, options.get(), &plan, err, sizeof err);
  const OwnedInfo owned(plan);
  if (status) *status = s;
  if (error) *error = err;
  return plan ? Facts(plan) : Facts();
}

Context create_context(riffle_model* model, const Options& options, bool quiet) {
  if (!options.is("prefill-selector", "tiles") &&
      options.text("prefill-share") != setting("prefill-share").standard)
    notice(quiet, "--prefill-share has no effect without --prefill-selector tiles");
  riffle_context* context = nullptr;
  char err[1024] = "";
  if (!quiet) say_no_gpu(model, options);
  InterruptGuard guard(nullptr);
  Progress progress("uploading weights", quiet);
  Options o = options;
  o.set_progress(Progress::callback, &progress);
  const riffle_status status = riffle_context_create(model, o.get(), &context, err, sizeof err);
  progress.finish();
  // Values that are refused here came from flags.
  if (status != RIFFLE_OK)
    fail(status, status == RIFFLE_BAD_ARGUMENT ? EXIT_USAGE : exit_code_of(status), err);
  Context owner(context);
  if (interrupted()) {
    notice(quiet, "[stopped]");
    throw Exit(EXIT_INTERRUPTED, "");
  }
  return owner;
}

void check_logit_bias(riffle_model* model, const CommonOptions& options) {
  const int32_t vocab_size = model_info(model).id("vocab_size");
  for (const riffle_logit_bias& bias : options.logit_bias)
    if (bias.token >= vocab_size)
      throw Exit(EXIT_USAGE,
                 text_of("--logit-bias: found token %d, expected a token of this model, 0 to %d",
                         bias.token, vocab_size - 1));
}

void say_unread_settings(const CommonOptions& options) {
  for (const auto& [setting, flag] : options.selection_flags)
    if (flag.given() && !read_by(*setting, options.options))
      notice(options.quiet, "%s has no effect: selector %s ignores it; it is for %s",
             flag_of(*setting).c_str(), options.options.text("selector").c_str(),
             joined(setting->selectors).c_str());
}

Session create_session(riffle_context* context) {
  riffle_session* session = nullptr;
  check(riffle_session_create(context, &session), context);
  return Session(session);
}

Facts model_info(const riffle_model* model) { return Facts(riffle_model_info(model)); }

std::string model_name(const riffle_model* model, const std::string& path) {
  const std::string name = riffle_info_text(riffle_model_info(model), "name");
  return name.empty() ? fs::path(path).filename().string() : name;
}

std::string say_notice(const riffle_context* context, bool quiet, const std::string& said) {
  const std::string text = riffle_context_notice(context);
  const bool goes_on = !said.empty() && text.starts_with(said + "\n");
  if (text.empty() || text == said) return text;
  for (const std::string& line : split(text.substr(goes_on ? said.size() + 1 : 0), '\n'))
    notice(quiet, "%s", line.c_str());
  return text;
}

Facts context_stats(riffle_context* context) {
  const riffle_info* const stats = riffle_context_stats(context);
  if (!stats) throw std::bad_alloc();
  return Facts(stats);
}

Facts session_stats(riffle_session* session) {
  const riffle_info* const stats = riffle_session_stats(session);
  if (!stats) throw std::bad_alloc();
  return Facts(stats);
}

// ---- text and tokens ----

namespace {
// Calls fill(out, capacity, &n) with a guessed capacity and, if that is too small, again with the
// capacity that it needs.
template <typename Vector, typename Fill>
Vector fill_buffer(riffle_model* model, size_t guess, Fill fill) {
  Vector out(guess, {});
  size_t n = 0;
  riffle_status status = fill(out.data(), out.size(), &n);
  if (status == RIFFLE_BUFFER_TOO_SMALL) {
    out.resize(n);
    status = fill(out.data(), out.size(), &n);
  }
  check(status, model);
  out.resize(n);
  return out;
}
}  // namespace

std::vector<int32_t> tokenize(riffle_model* model, std::string_view text, uint32_t flags) {
  return fill_buffer<std::vector<int32_t>>(
      model, text.size() + 2, [&](int32_t* out, size_t capacity, size_t* n) {
        return riffle_tokenize(model, text.data(), text.size(), flags, out, capacity, n);
      });
}

std::string detokenize(riffle_model* model, const std::vector<int32_t>& tokens) {
  return fill_buffer<std::string>(
      model, tokens.size() * 8 + 16, [&](char* out, size_t capacity, size_t* n) {
        return riffle_detokenize(model, tokens.data(), tokens.size(), out, capacity, n);
      });
}

std::string token_bytes(riffle_model* model, int32_t token) {
  return fill_buffer<std::string>(model, 64, [&](char* out, size_t capacity, size_t* n) {
    return riffle_token_bytes(model, token, out, capacity, n);
  });
}

Json parse_json(std::string_view text) {
  char err[256] = "";
  if (!riffle_check_json(text.data(), text.size(), err, sizeof err)) throw std::runtime_error(err);
  return Json::parse(text);
}

std::string with_document(const std::string& document, std::string_view question) {
  std::string text(document.size() + 1 + question.size(), '\0');
  size_t size = 0;
  const riffle_status status =
      riffle_document_question(document.data(), document.size(), question.data(), question.size(),
                               text.data(), text.size(), &size);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), riffle_status_name(status));
  text.resize(size);
  return text;
}

std::vector<int32_t> document_tokens(riffle_model* model, const std::string& document,
                                     const std::string& system, bool message,
                                     const Options& options) {
  return fill_buffer<std::vector<int32_t>>(
      model, document.size() + system.size() + 64, [&](int32_t* out, size_t capacity, size_t* n) {
        return riffle_document_tokens(model, document.data(), document.size(), system.c_str(),
                                      message, options.get(), out, capacity, n);
      });
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw Exit(EXIT_RUN, std::string("stdout: cannot write: ") + std::strerror(errno));
}

// ---- statistics and JSON ----

namespace {
double ratio(double a, double b) {
  return b > 0 ? a / b : std::numeric_limits<double>::quiet_NaN();
}
}  // namespace

double kv_read_pct(const Facts& s) {
  return 100 * ratio(s.number("kv_tokens_read"), s.number("kv_tokens_total"));
}
double pool_hit_pct(const Facts& s) {
  return 100 * ratio(s.number("pool_hits"), s.number("pool_lookups"));
}
double tiles_read_pct(const Facts& s) {
  return 100 * ratio(s.number("prefill_tiles_read"), s.number("prefill_tiles_seen"));
}
double prefill_rate(const Facts& s) {
  return ratio(s.number("prefill_tokens"), s.number("prefill_seconds"));
}
double decode_rate(const Facts& s) {
  return ratio(s.number("decode_tokens"), s.number("decode_seconds"));
}

const char* finish_name(riffle_finish finish) {
  switch (finish) {
    case RIFFLE_FINISH_STOP: return "stop";
    case RIFFLE_FINISH_LENGTH: return "length";
    case RIFFLE_FINISH_CONTEXT: return "context";
    case RIFFLE_FINISH_ABORTED: return "aborted";
    default: return "none";
  }
}

std::string percent(double value) { return std::isfinite(value) ? text_of("%.1f%%", value) : "-"; }

std::string stats_line(const Facts& s) {
  std::string line = text_of("%.0f tokens read", s.number("prefill_tokens"));
  if (const double r = prefill_rate(s); std::isfinite(r)) line += text_of(" at %.0f/s", r);
  if (const double p = tiles_read_pct(s); std::isfinite(p))
    line += text_of(", %.1f%% of key tiles read", p);
  const double tokens = s.number("decode_tokens");
  if (s.number("lookup_proposed") > 0)
    line += text_of(", %.0f tokens in %.0f decode steps", tokens, s.number("decode_steps"));
  else line += text_of(", %.0f decode steps", tokens);
  if (const double r = decode_rate(s); std::isfinite(r)) line += text_of(" at %.1f/s", r);
  if (const double p = kv_read_pct(s); std::isfinite(p)) line += text_of(", %.1f%% of KV read", p);
  if (const double p = pool_hit_pct(s); std::isfinite(p)) line += text_of(", %.1f%% pool hits", p);
  return line;
}

std::string seed_text(const Options& answer) {
  return answer.number("temp") > 0 ? "seed " + answer.text("seed") : "";
}

Json stats_json(const Facts& s) {
  Json json = Json::object();
  const auto counts = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) json[name] = s.count(name);
  };
  counts({"prefill_tokens"});
  json["prefill_seconds"] = number(s.number("prefill_seconds"));
  json["prefill_tokens_per_second"] = number(prefill_rate(s));
  counts({"prefill_tiles_seen", "prefill_tiles_read"});
  counts({"decode_tokens", "decode_steps", "lookup_proposed", "lookup_accepted"});
  json["decode_seconds"] = number(s.number("decode_seconds"));
  json["decode_tokens_per_second"] = number(decode_rate(s));
  counts({"kv_blocks_total", "kv_blocks_read"});
  json["kv_read_pct"] = number(kv_read_pct(s));
  counts({"kv_tokens_total", "kv_tokens_read", "kv_bytes_read", "index_bytes_read", "selections",
          "cached_selections", "pool_slots", "pool_lookups", "pool_hits"});
  json["pool_hit_pct"] = number(pool_hit_pct(s));
  counts({"loaded_bytes", "flushed_bytes", "evictions", "host_kv_bytes", "peak_rss_bytes"});
  return json;
}

Json selection_json(const Options& options) { return settings_json("selection", options); }

Json context_json(const Options& options) {
  Json json = settings_json("context", options);
  json["selection"] = selection_json(options);
  return json;
}

void print_json(const Json& json) { write_out(dump(json) + "\n"); }

}  // namespace riffle::cli
