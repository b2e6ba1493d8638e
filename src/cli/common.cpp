#include "cli/common.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/settings.h"
#include "cli/text_file.h"

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
  // Someone who presses Ctrl-C knows why it stopped.
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
// A file of the shipped model's folder; "" if there is none.
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
  // Threads spin while they wait, so far more threads than CPUs slow each step down.
  const int32_t cpus = riffle_usable_cpus();
  if (n <= 2 * cpus) return n;
  notice(quiet, "[--threads %d: this process may use %d CPU%s; riffle uses %d thread%s]", n, cpus,
         cpus == 1 ? "" : "s", cpus, cpus == 1 ? "" : "s");
  return cpus;
}

Model load_model(CommonOptions& options) {
  options.context.n_threads = usable_threads(options.context.n_threads, options.quiet);
  options.model_path = resolve_model_path(options.model_path);
  InterruptGuard guard(nullptr);
  Progress progress("loading model", options.quiet);
  riffle_model_options o;
  riffle_model_defaults(&o);
  o.progress = Progress::callback;
  o.progress_user = &progress;
  if (!options.chat_template.empty()) o.chat_template = options.chat_template.c_str();
  if (!options.weights.empty()) o.weights = options.weights.c_str();
  o.n_threads = options.context.n_threads;
  riffle_model* model = nullptr;
  char err[1024] = "";
  const riffle_status status =
      riffle_model_load(options.model_path.c_str(), &o, &model, err, sizeof err);
  progress.finish();
  if (status == RIFFLE_BAD_MODEL && is_session(options.model_path))
    throw Exit(EXIT_BAD_MODEL,
               "-m " + options.model_path +
                   ": found a session of riffle, expected a GGUF file or a Hugging Face folder; "
                   "riffle info " +
                   options.model_path +
                   " shows the session, and run --session or chat --session uses it");
  if (status != RIFFLE_OK) {
    const bool model = (status == RIFFLE_IO || status == RIFFLE_BAD_MODEL) &&
                       !std::strstr(err, "Git LFS");  // in a folder, too
    if (const std::string what = model ? wrong_model(options.model_path) : ""; !what.empty())
      throw Exit(EXIT_BAD_MODEL, what);
    const bool file =
        status == RIFFLE_IO || status == RIFFLE_UNSUPPORTED || status == RIFFLE_BAD_ARGUMENT;
    fail(status, file ? EXIT_BAD_MODEL : exit_code_of(status), err);
  }
  return Model(model);
}

namespace {
// Why device auto does not use a GPU, if that may surprise: a GPU is there and cannot be used. Most
// machines have no GPU; `riffle info` says so there.
void say_no_gpu(riffle_model* model, const riffle_context_options& options) {
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  if (options.device != RIFFLE_DEVICE_AUTO ||
      riffle_plan_memory(model, &options, &plan, nullptr, 0) != RIFFLE_OK || !*plan.device_note ||
      std::strcmp(plan.device, "cuda") == 0)
    return;
  if (plan.no_driver) return;
  notice(false, "running on the CPU: %s", plan.device_note);
}
}  // namespace

Context create_context(riffle_model* model, const riffle_context_options& options, bool quiet) {
  riffle_context* context = nullptr;
  char err[1024] = "";
  if (!quiet) say_no_gpu(model, options);
  InterruptGuard guard(nullptr);
  Progress progress("uploading weights", quiet);
  riffle_context_options o = options;
  o.progress = Progress::callback;
  o.progress_user = &progress;
  const riffle_status status = riffle_context_create(model, &o, &context, err, sizeof err);
  progress.finish();
  // What is refused here came from flags.
  if (status != RIFFLE_OK)
    fail(status, status == RIFFLE_BAD_ARGUMENT ? EXIT_USAGE : exit_code_of(status), err);
  Context owner(context);
  if (interrupted()) {
    notice(quiet, "[stopped]");
    throw Exit(EXIT_INTERRUPTED, "");
  }
  return owner;
}

void share_host_memory(riffle_model* model, riffle_context_options& options) {
  if (options.host_mem) return;
  riffle_context_options one = options;
  one.n_sessions = 1;
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  const riffle_status status = riffle_plan_memory(model, &one, &plan, nullptr, 0);
  if (status != RIFFLE_OK && !plan.device) return;  // the error comes again, with its text
  // Three quarters are for the KV and for what is kept beside it (INT4 keys, digests), which grows
  // with it and which host_mem does not count.
  const uint64_t digests =
      plan.device == std::string("cuda") ? 0 : plan.digests;  // a GPU has them in its own memory
  const double kv = static_cast<double>(plan.host_kv),
               beside = static_cast<double>(plan.selector_state + digests);
  const double share = kv > 0 ? kv / (kv + beside) : 1;
  options.host_mem = std::max(
      static_cast<uint64_t>(0.75 * share * static_cast<double>(plan.host_memory)), plan.host_kv);
}

void check_logit_bias(riffle_model* model, const CommonOptions& options) {
  const int32_t vocab_size = model_info(model).vocab_size;
  for (const riffle_logit_bias& bias : options.logit_bias)
    if (bias.token >= vocab_size)
      throw Exit(EXIT_USAGE,
                 text_of("--logit-bias: found token %d, expected a token of this model, 0 to %d",
                         bias.token, vocab_size - 1));
}

void say_unread_settings(const CommonOptions& options) {
  const riffle_selection& s = options.context.selection;
  for (const auto& [setting, flag] : options.selection_flags)
    if (flag->count() && !read_by(*setting, s))
      notice(options.quiet, "%s has no effect: selector %s does not look at it, it is for %s",
             flag_of(*setting).c_str(), selector_name(s.selector), selectors_of(*setting).c_str());
}

Session create_session(riffle_context* context) {
  riffle_session* session = nullptr;
  check(riffle_session_create(context, &session), context);
  return Session(session);
}

riffle_model_info model_info(const riffle_model* model) {
  riffle_model_info info{};
  info.struct_size = sizeof info;
  check(riffle_model_get_info(model, &info), model);
  return info;
}

std::string model_name(const riffle_model* model, const std::string& path) {
  const riffle_model_info info = model_info(model);
  return *info.name ? info.name : fs::path(path).filename().string();
}

std::string say_notice(const riffle_context* context, bool quiet, const std::string& said) {
  const std::string text = riffle_context_notice(context);
  const bool goes_on = !said.empty() && text.starts_with(said + "; ");
  if (!text.empty() && text != said)
    notice(quiet, "%s", text.c_str() + (goes_on ? said.size() + 2 : 0));
  return text;
}

riffle_stats context_stats(const riffle_context* context) {
  riffle_stats stats{};
  stats.struct_size = sizeof stats;
  check(riffle_get_stats(context, &stats), context);
  return stats;
}

riffle_stats session_stats(const riffle_session* session) {
  riffle_stats stats{};
  stats.struct_size = sizeof stats;
  if (const riffle_status s = riffle_session_get_stats(session, &stats); s != RIFFLE_OK)
    throw Exit(exit_code_of(s), riffle_status_name(s));
  return stats;
}

// ---- text and tokens ----

namespace {
// Calls fill(out, capacity, &n) once with a guess and, if that was too small, again with what it
// asked for.
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

namespace {
// "2026-11-23", here and now.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}
}  // namespace

ChatPrompt chat_prompt(riffle_model* model, const std::vector<Message>& messages,
                       const Thinking& thinking) {
  std::vector<riffle_message> list;
  std::vector<const char*> reasoning;
  size_t guess = 64;
  for (const Message& m : messages) {
    check_no_nul("the message", m.content);
    list.push_back({m.role.c_str(), m.content.c_str()});
    reasoning.push_back(m.reasoning.empty() ? nullptr : m.reasoning.c_str());
    guess += m.content.size() + 16;
  }
  const std::string date = today();
  riffle_chat_options options;
  riffle_chat_defaults(&options);
  options.thinking = thinking.enabled;
  options.reasoning_effort = thinking.effort;
  options.reasoning = reasoning.data();
  options.date = date.c_str();
  ChatPrompt prompt;
  prompt.tokens = fill_buffer<std::vector<int32_t>>(
      model, guess, [&](int32_t* out, size_t capacity, size_t* n) {
        return riffle_chat_prompt(model, list.data(), list.size(), &options, out, capacity, n,
                                  &prompt.in_reasoning);
      });
  return prompt;
}

std::vector<int32_t> chat_tokens(riffle_model* model, const std::vector<Message>& messages) {
  return chat_prompt(model, messages, {}).tokens;
}

std::string with_document(std::string document, std::string_view question) {
  while (!document.empty() && (document.back() == '\n' || document.back() == '\r'))
    document.pop_back();
  return document + "\n" + std::string(question);
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

double kv_read_pct(const riffle_stats& s) {
  return 100 * ratio(static_cast<double>(s.kv_tokens_read), static_cast<double>(s.kv_tokens_total));
}
double pool_hit_pct(const riffle_stats& s) {
  return 100 * ratio(static_cast<double>(s.pool_hits), static_cast<double>(s.pool_lookups));
}
double prefill_rate(const riffle_stats& s) {
  return ratio(static_cast<double>(s.prefill_tokens), s.prefill_seconds);
}
double decode_rate(const riffle_stats& s) {
  return ratio(static_cast<double>(s.decode_tokens), s.decode_seconds);
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

std::string stats_line(const riffle_stats& s) {
  std::string line = text_of("%llu tokens read", static_cast<unsigned long long>(s.prefill_tokens));
  if (const double r = prefill_rate(s); std::isfinite(r)) line += text_of(" at %.0f/s", r);
  const auto tokens = static_cast<unsigned long long>(s.decode_tokens);
  if (s.lookup_proposed)
    line += text_of(", %llu tokens in %llu decode steps", tokens,
                    static_cast<unsigned long long>(s.decode_steps));
  else line += text_of(", %llu decode steps", tokens);
  if (const double r = decode_rate(s); std::isfinite(r)) line += text_of(" at %.1f/s", r);
  if (const double p = kv_read_pct(s); std::isfinite(p)) line += text_of(", %.1f%% of KV read", p);
  if (const double p = pool_hit_pct(s); std::isfinite(p)) line += text_of(", %.1f%% pool hits", p);
  return line;
}

riffle_sampling sampling_of(const CommonOptions& o) {
  riffle_sampling s = o.generate.sampling;
  s.logit_bias = o.logit_bias.data();
  s.n_logit_bias = o.logit_bias.size();
  return s;
}

std::string seed_text(const riffle_sampling& s) {
  return s.temperature > 0 ? "seed " + std::to_string(s.seed) : "";
}

Json stats_json(const riffle_stats& s) {
  return {{"prefill_tokens", s.prefill_tokens},
          {"prefill_seconds", number(s.prefill_seconds)},
          {"prefill_tokens_per_second", number(prefill_rate(s))},
          {"decode_tokens", s.decode_tokens},
          {"decode_steps", s.decode_steps},
          {"lookup_proposed", s.lookup_proposed},
          {"lookup_accepted", s.lookup_accepted},
          {"decode_seconds", number(s.decode_seconds)},
          {"decode_tokens_per_second", number(decode_rate(s))},
          {"kv_blocks_total", s.kv_blocks_total},
          {"kv_blocks_read", s.kv_blocks_read},
          {"kv_read_pct", number(kv_read_pct(s))},
          {"kv_tokens_total", s.kv_tokens_total},
          {"kv_tokens_read", s.kv_tokens_read},
          {"kv_bytes_read", s.kv_bytes_read},
          {"index_bytes_read", s.index_bytes_read},
          {"selections", s.selections},
          {"cached_selections", s.cached_selections},
          {"pool_slots", s.pool_slots},
          {"pool_lookups", s.pool_lookups},
          {"pool_hits", s.pool_hits},
          {"pool_hit_pct", number(pool_hit_pct(s))},
          {"loaded_bytes", s.loaded_bytes},
          {"flushed_bytes", s.flushed_bytes},
          {"evictions", s.evictions},
          {"host_kv_bytes", s.host_kv_bytes},
          {"peak_rss_bytes", s.peak_rss_bytes}};
}

Json selection_json(const riffle_selection& s) {
  return settings_json(RIFFLE_OPTIONS_SELECTION, &s);
}

Json context_json(const riffle_context_options& o) {
  Json json = settings_json(RIFFLE_OPTIONS_CONTEXT, &o);
  json["selection"] = selection_json(o.selection);
  return json;
}

void print_json(const Json& json) { write_out(dump(json) + "\n"); }

}  // namespace riffle::cli
