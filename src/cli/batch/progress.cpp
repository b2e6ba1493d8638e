#include "cli/batch/progress.h"

#include <cmath>

namespace riffle::cli {

static constexpr size_t kMaxNames = 32;  // names of ignored fields of each kind that are kept

BatchProgress::BatchProgress(riffle_context* context, size_t total, bool cache, bool quiet)
    : context_(context), total_(total), cache_(cache), bar_("batch", quiet, 60) {}

double BatchProgress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::string BatchProgress::rate() const {
  std::string text = text_of("%.1f tokens/s",
                             static_cast<double>(counts.answer_tokens) / std::max(seconds(), 1e-3));
  if (const double hits = pool_hit_pct(context_stats(context_)); std::isfinite(hits))
    text += text_of(", %.1f%% pool hits", hits);
  return text;
}

void BatchProgress::update() {
  if (!bar_.due()) return;
  const size_t done = counts.answers + counts.errors + counts.earlier;
  std::string label = text_of("%zu", done);
  if (total_) label += text_of(" of %zu", total_);
  label += " lines, " + rate();
  if (counts.errors) label += text_of(", %zu failed", counts.errors);
  bar_.show(std::move(label), static_cast<double>(done), static_cast<double>(total_));
}

std::string BatchProgress::summary() const {
  const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::string text = text_of("%zu answers, %zu errors", counts.answers, counts.errors);
  if (counts.earlier) text += text_of(", %zu answers from an earlier run", counts.earlier);
  if (counts.held) text += text_of(", %zu lines already had a record", counts.held);
  text += text_of("; %llu prompt tokens", count(counts.prompt_tokens));
  std::string taken;
  if (counts.reused_tokens) taken = text_of("%llu reused", count(counts.reused_tokens));
  if (cache_)
    taken += text_of("%s%llu from the prefix cache", taken.empty() ? "" : ", ",
                     count(counts.cached_tokens));
  if (!taken.empty()) text += " (" + taken + ")";
  return text +
         text_of(", %llu answer tokens in %.1f s: ", count(counts.answer_tokens), seconds()) +
         rate();
}

void BatchProgress::add_ignored(const Facts& request) {
  const auto add = [&](Names& names, const std::string& kind) {
    for (int64_t i = 0; i < request.count("n_" + kind); ++i) {
      const std::string name = request.text(kind + "_" + std::to_string(i));
      if (names.contains(name) || names.size() < kMaxNames) ++names[name];
    }
  };
  add(without_effect_, "ignored");
  add(unknown_, "unknown");
}

void BatchProgress::add_error(const std::string& message) {
  if (first_error_.empty()) first_error_ = message;
}

void BatchProgress::add_fitted(size_t line, const std::string& fitted) {
  if (!fitted.empty()) add(fitted == "joined" ? joined_ : moved_, line);
}

void BatchProgress::add_unread(size_t line, Unread what) {
  add(unread_[static_cast<size_t>(what)], line);
}

void BatchProgress::add(Lines& lines, size_t line) {
  if (lines.count++ == 0) lines.first = line;
}

std::vector<std::string> BatchProgress::notices() const {
  const auto lines = [](size_t n) { return text_of("%zu line%s", n, n == 1 ? "" : "s"); };
  const auto list = [&](const Names& names) {
    std::vector<std::string> parts;
    for (const auto& [name, n] : names) parts.push_back(name + " (" + lines(n) + ")");
    if (names.size() == kMaxNames) parts.push_back("maybe others");
    return joined(parts);
  };
  std::vector<std::string> out;
  if (!first_error_.empty()) out.push_back("the first error: " + first_error_);
  if (!without_effect_.empty())
    out.push_back("ignored, since no answer depends on it: " + list(without_effect_));
  if (!unknown_.empty()) out.push_back("ignored (--ignore-unknown): " + list(unknown_));
  const auto add = [&](const Lines& of, const char* what) {
    if (of.count)
      out.push_back(lines(of.count) + " (the first: line " + std::to_string(of.first) +
                    "): " + what);
  };
  add(joined_, fitted_text("joined"));
  add(moved_, fitted_text("moved"));
  const auto add_unread = [&](Unread what, const char* text) {
    add(unread_[static_cast<size_t>(what)], text);
  };
  add_unread(Unread::EFFORT,
             "reasoning_effort has no effect: the model's chat template does not use it");
  add_unread(Unread::THINKING,
             "enable_thinking, or reasoning_effort \"none\", has no effect: the model's chat "
             "template does not use enable_thinking");
  add_unread(
      Unread::PROMPT,
      "reasoning_effort and chat_template_kwargs have no effect: a prompt does not go through "
      "the chat template");
  return out;
}

}  // namespace riffle::cli
