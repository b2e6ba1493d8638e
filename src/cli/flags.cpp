#include "cli/flags.h"

#include <CLI/CLI.hpp>

namespace riffle::cli {

Flag& Flag::group(const std::string& title) {
  option_->group(title);
  return *this;
}
Flag& Flag::value(const std::string& name) {
  option_->type_name(name);
  return *this;
}
Flag& Flag::help(const std::string& text) {
  option_->description(text);
  return *this;
}
Flag& Flag::standard(const std::string& text) {
  option_->default_str(text);
  return *this;
}
Flag& Flag::shows_default() {
  option_->capture_default_str();
  return *this;
}
Flag& Flag::check(const std::function<std::string(const std::string&)>& error_of) {
  option_->check(error_of);
  return *this;
}
Flag& Flag::range(int32_t low, int32_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}
Flag& Flag::range(double low, double high) {
  option_->check(CLI::Range(low, high));
  return *this;
}
Flag& Flag::required() {
  option_->required();
  return *this;
}
Flag& Flag::repeated() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}
Flag& Flag::values(int least, int most) {
  option_->expected(least, most);
  return *this;
}
Flag& Flag::needs(const Flag& other) {
  option_->needs(other.option_);
  return *this;
}
Flag& Flag::excludes(const Flag& other) {
  option_->excludes(other.option_);
  return *this;
}
bool Flag::given() const { return option_->count() > 0; }

Flag add_text(CLI::App& app, const std::string& names, std::string& target,
              const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_text(CLI::App& app, const std::string& names,
              const std::function<void(const std::string&)>& take, const std::string& help) {
  return Flag(app.add_option_function<std::string>(names, take, help));
}
Flag add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& target,
               const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_texts(CLI::App& app, const std::string& names,
               const std::function<void(const std::vector<std::string>&)>& take,
               const std::string& help) {
  return Flag(app.add_option_function<std::vector<std::string>>(names, take, help));
}
Flag add_number(CLI::App& app, const std::string& names, int32_t& target, const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_number(CLI::App& app, const std::string& names, uint64_t& target,
                const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_number(CLI::App& app, const std::string& names, float& target, const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_number(CLI::App& app, const std::string& names, double& target, const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_number(CLI::App& app, const std::string& names, std::optional<int32_t>& target,
                const std::string& help) {
  return Flag(app.add_option(names, target, help));
}
Flag add_switch(CLI::App& app, const std::string& names, bool& target, const std::string& help) {
  return Flag(app.add_flag(names, target, help));
}
Flag add_switch(CLI::App& app, const std::string& names, const std::function<void(bool)>& take,
                const std::string& help) {
  // The parser counts =false as -1.
  return Flag(app.add_flag_function(
      names, [take](int64_t n) { take(n > 0); }, help));
}
Flag add_switch_or_word(CLI::App& app, const std::string& names,
                        const std::function<void(const std::string&)>& take,
                        const std::string& help) {
  return Flag(app.add_flag(names)->description(help)->each(take));
}

bool is_on(const std::string& word) { return CLI::detail::to_flag_value(word) > 0; }

Flag flag_named(CLI::App& command, const std::string& name) {
  return Flag(command.get_option(name));
}

void refuse_value(const std::string& flag, const std::string& why) {
  throw CLI::ValidationError(flag, why);
}
void refuse_both(const std::string& flag, const std::string& other) {
  throw CLI::ExcludesError(flag, other);
}

CLI::App& add_command(CLI::App& app, const std::string& name, const std::string& description) {
  return *app.add_subcommand(name, description);
}
void when_parsed(CLI::App& command, const std::function<void()>& function) {
  command.final_callback(function);
}

}  // namespace riffle::cli
