// Options and facts of riffle.h by name, for C++. A name that does not exist is a fault of this
// program: std::logic_error.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/text.h"
#include "riffle.h"
#include "riffle_grammar.h"
#include "riffle_tools.h"

namespace riffle::cli {

// All settings, which flags, lines of a batch and commands of a chat change. Errors name settings
// by their flags.
class Options {
 public:
  Options();
  Options(const Options& other);
  Options(Options&&) = default;
  Options& operator=(const Options& other);
  Options& operator=(Options&&) = default;

  riffle_options* get() { return handle_.get(); }
  const riffle_options* get() const { return handle_.get(); }

  // Throws Exit(EXIT_USAGE) with the library's text, which names flag, value and what is expected.
  void set(const std::string& name, const std::string& value);
  void set(const std::string& name, const char* value) { set(name, std::string(value)); }
  void set(const std::string& name, int64_t value) { set(name, std::to_string(value)); }
  void set(const std::string& name, int value) { set(name, std::to_string(value)); }
  void set(const std::string& name, uint64_t value) { set(name, std::to_string(value)); }
  void set(const std::string& name, bool value) { set(name, value ? "true" : "false"); }
  // Tries to set the option. Returns false if the value is refused; then nothing is changed.
  bool accepts(const std::string& name, const std::string& value);

  std::string text(const std::string& name) const;
  double number(const std::string& name) const;
  int64_t count(const std::string& name) const;
  uint64_t size(const std::string& name) const;  // with all 64 bits
  bool on(const std::string& name) const { return text(name) == "true"; }
  bool is(const std::string& name, std::string_view word) const { return text(name) == word; }

  void set_stop(const std::vector<std::string>& stop);
  void set_breakers(const std::vector<std::string>& breakers);
  void set_logit_bias(const std::vector<riffle_logit_bias>& bias);
  void set_grammar(const riffle_grammar* grammar);
  void set_progress(riffle_progress_fn progress, void* user);

 private:
  struct Free {
    void operator()(riffle_options* o) const { riffle_options_free(o); }
  };
  void check(riffle_status status) const;
  std::unique_ptr<riffle_options, Free> handle_;
};

// A copy of a riffle_info. A fact that was never filled in counts as 0.
class Facts {
 public:
  Facts() = default;
  explicit Facts(const riffle_info* info);

  bool empty() const { return facts_.empty(); }
  double number(std::string_view name) const;
  int64_t count(std::string_view name) const { return static_cast<int64_t>(number(name)); }
  int id(std::string_view name) const { return static_cast<int>(number(name)); }
  bool on(std::string_view name) const { return number(name) != 0; }
  std::string text(std::string_view name) const;
  // Adds the numbers of the other facts.
  void add(const Facts& other);
  void set(const std::string& name, double number);
  // Returns names and numbers of the facts PREFIX/NAME, the largest first.
  std::vector<std::pair<std::string, double>> under(const std::string& prefix) const;

 private:
  struct Fact {
    bool is_text = false;
    double number = 0;
    std::string text;
  };
  std::map<std::string, Fact, std::less<>> facts_;
};

// Frees a riffle_info that this program owns.
struct FreeInfo {
  void operator()(riffle_info* info) const { riffle_info_free(info); }
};
using OwnedInfo = std::unique_ptr<riffle_info, FreeInfo>;

}  // namespace riffle::cli
