// Flags of the commands: a few functions over the parser's templates, which take seconds to
// compile. Only this room's files that parse include the parser.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace riffle::cli {

// A flag: its declaration, and after parsing whether it was given.
class Flag {
 public:
  Flag() = default;
  explicit Flag(CLI::Option* option) : option_(option) {}

  Flag& group(const std::string& title);
  Flag& value(const std::string& name);  // the help's name of its value: "FILE"
  Flag& help(const std::string& text);
  Flag& standard(const std::string& text);  // the help's text of the default
  Flag& shows_default();                    // shows the target's current value as the default
  // The check returns the error of a value; "": none.
  Flag& check(const std::function<std::string(const std::string&)>& error_of);
  Flag& range(int32_t low, int32_t high);
  Flag& range(double low, double high);
  Flag& required();
  // The flag may be given several times, with one value each; all values count.
  Flag& repeated();
  Flag& values(int least, int most);  // takes that many words
  Flag& needs(const Flag& other);
  Flag& excludes(const Flag& other);

  bool given() const;

 private:
  CLI::Option* option_ = nullptr;
};

// names: "-p,--prompt". The value goes to the target or to the function; the functions may call
// refuse_value.
Flag add_text(CLI::App& app, const std::string& names, std::string& target,
              const std::string& help);
Flag add_text(CLI::App& app, const std::string& names,
              const std::function<void(const std::string&)>& take, const std::string& help);
Flag add_texts(CLI::App& app, const std::string& names, std::vector<std::string>& target,
               const std::string& help);
Flag add_texts(CLI::App& app, const std::string& names,
               const std::function<void(const std::vector<std::string>&)>& take,
               const std::string& help);
Flag add_number(CLI::App& app, const std::string& names, int32_t& target, const std::string& help);
Flag add_number(CLI::App& app, const std::string& names, uint64_t& target, const std::string& help);
Flag add_number(CLI::App& app, const std::string& names, float& target, const std::string& help);
Flag add_number(CLI::App& app, const std::string& names, double& target, const std::string& help);
Flag add_number(CLI::App& app, const std::string& names, std::optional<int32_t>& target,
                const std::string& help);
// Flags that are on or off: --name, --name=false.
Flag add_switch(CLI::App& app, const std::string& names, bool& target, const std::string& help);
Flag add_switch(CLI::App& app, const std::string& names, const std::function<void(bool)>& take,
                const std::string& help);
// Adds a switch that also takes words after an equals sign; `take` gets the word, or "true".
Flag add_switch_or_word(CLI::App& app, const std::string& names,
                        const std::function<void(const std::string&)>& take,
                        const std::string& help);

// Reads the word of a switch as the parser does: "true", "on", "1", ... Throws what the parser
// throws.
bool is_on(const std::string& word);

// Finds a flag of a command that has it.
Flag flag_named(CLI::App& command, const std::string& name);

// Throw the parser's errors: the value of the flag is wrong; the flags exclude each other.
[[noreturn]] void refuse_value(const std::string& flag, const std::string& why);
[[noreturn]] void refuse_both(const std::string& flag, const std::string& other);

CLI::App& add_command(CLI::App& app, const std::string& name, const std::string& description);
// Calls the function when the command's flags have been read.
void when_parsed(CLI::App& command, const std::function<void()>& function);

}  // namespace riffle::cli
