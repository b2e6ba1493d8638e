#include "cli/options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "cli/common.h"
#include "cli/settings.h"

namespace riffle::cli {
namespace {

riffle_options* made(riffle_options* options) {
  if (!options) throw std::bad_alloc();
  riffle_options_set_names(options, flag_of_name);
  return options;
}

[[noreturn]] void unknown(std::string_view name) {
  throw std::logic_error("there is no option or fact " + std::string(name));
}

std::vector<const char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  pointers.push_back(nullptr);  // so that an empty list does not give a null pointer
  return pointers;
}

}  // namespace

Options::Options() : handle_(made(riffle_options_create())) {}
Options::Options(const Options& other) : handle_(made(riffle_options_copy(other.get()))) {}
Options& Options::operator=(const Options& other) {
  handle_.reset(made(riffle_options_copy(other.get())));
  return *this;
}

void Options::check(riffle_status status) const {
  if (status != RIFFLE_OK) throw Exit(EXIT_USAGE, riffle_options_error(get()));
}

void Options::set(const std::string& name, const std::string& value) {
  check(riffle_options_set(get(), name.c_str(), value.c_str()));
}

bool Options::accepts(const std::string& name, const std::string& value) {
  return riffle_options_set(get(), name.c_str(), value.c_str()) == RIFFLE_OK;
}

std::string Options::text(const std::string& name) const {
  const char* const text = riffle_options_get(get(), name.c_str());
  if (!text) unknown(name);
  return text;
}

double Options::number(const std::string& name) const {
  return std::strtod(text(name).c_str(), nullptr);
}
int64_t Options::count(const std::string& name) const {
  return std::strtoll(text(name).c_str(), nullptr, 10);
}
uint64_t Options::size(const std::string& name) const {
  return std::strtoull(text(name).c_str(), nullptr, 10);
}

void Options::set_stop(const std::vector<std::string>& stop) {
  check(riffle_options_set_stop(get(), pointers_of(stop).data(), stop.size()));
}
void Options::set_breakers(const std::vector<std::string>& breakers) {
  check(riffle_options_set_breakers(get(), pointers_of(breakers).data(), breakers.size()));
}
void Options::set_logit_bias(const std::vector<riffle_logit_bias>& bias) {
  check(riffle_options_set_logit_bias(get(), bias.data(), bias.size()));
}
void Options::set_grammar(const riffle_grammar* grammar) {
  check(riffle_options_set_grammar(get(), grammar));
}
void Options::set_progress(riffle_progress_fn progress, void* user) {
  riffle_options_set_progress(get(), progress, user);
}

Facts::Facts(const riffle_info* info) {
  for (size_t i = 0; const char* name = riffle_info_name(info, i); ++i) {
    Fact& fact = facts_[name];
    fact.is_text = riffle_info_kind_of(info, name) == RIFFLE_INFO_TEXT;
    if (fact.is_text) fact.text = riffle_info_text(info, name);
    else fact.number = riffle_info_number(info, name);
  }
}

double Facts::number(std::string_view name) const {
  if (empty()) return 0;
  const auto at = facts_.find(name);
  if (at == facts_.end() || at->second.is_text) unknown(name);
  return at->second.number;
}

std::string Facts::text(std::string_view name) const {
  if (empty()) return "";
  const auto at = facts_.find(name);
  if (at == facts_.end() || !at->second.is_text) unknown(name);
  return at->second.text;
}

void Facts::add(const Facts& other) {
  for (const auto& [name, fact] : other.facts_)
    if (!fact.is_text) facts_[name].number += fact.number;
}

void Facts::set(const std::string& name, double number) { facts_[name] = {false, number, ""}; }

std::vector<std::pair<std::string, double>> Facts::under(const std::string& prefix) const {
  std::vector<std::pair<std::string, double>> found;
  for (const auto& [name, fact] : facts_)
    if (name.starts_with(prefix + "/"))
      found.emplace_back(name.substr(prefix.size() + 1), fact.number);
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return found;
}

}  // namespace riffle::cli
