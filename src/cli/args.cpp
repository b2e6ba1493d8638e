#include "cli/args.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/help.h"
#include "riffle_text.h"

namespace riffle::cli {

std::string not_empty(const std::string& value) {
  return value.empty() ? "found an empty path, expected a file or a folder" : "";
}

namespace {

// Returns nothing for -1, which means "random" in llama.cpp.
std::optional<uint64_t> parse_seed(const std::string& text) {
  if (text == "-1") return std::nullopt;
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc() || stop != end)
    refuse_value("--seed", "'" + text + "': expected a whole number from 0 to " +
                               std::to_string(UINT64_MAX) + ", or -1 for a random seed");
  return seed;
}

// Reads "15043+1.5" or "15043-inf": a token and the number that is added to its logit, in
// llama.cpp's form.
riffle_logit_bias parse_logit_bias(const std::string& text) {
  const auto refuse = [&] {
    refuse_value(
        "--logit-bias",
        text_of("'%s': expected TOKEN+NUMBER, TOKEN-NUMBER or TOKEN-inf, such as 15043-1.5, where "
                "NUMBER is 0 to %g",
                text.c_str(), RIFFLE_MAX_LOGIT_BIAS));
  };
  riffle_logit_bias out{};
  const char* const end = text.data() + text.size();
  const auto token = std::from_chars(text.data(), end, out.token);
  if (token.ec != std::errc() || out.token < 0 || token.ptr == end) refuse();
  const bool minus = *token.ptr == '-';
  if ((!minus && *token.ptr != '+') || token.ptr + 1 == end || token.ptr[1] == '-') refuse();
  const auto bias = std::from_chars(token.ptr + 1, end, out.bias);
  if (bias.ec != std::errc() || bias.ptr != end || std::isnan(out.bias)) refuse();
  if (minus) out.bias = -out.bias;
  if (std::fabs(out.bias) > RIFFLE_MAX_LOGIT_BIAS && out.bias != -INFINITY) refuse();
  return out;
}

// Reads line breaks, tabs, quotation marks and backslashes written as in C, which llama.cpp allows
// too.
std::string without_escapes(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const size_t which = next == '\0' ? std::string::npos : std::string_view("nt\"\\").find(next);
    out += which == std::string::npos ? text[i] : "\n\t\"\\"[which];
    if (which != std::string::npos) ++i;
  }
  return out;
}

void add_dry_breakers_flag(CLI::App& app, CommonOptions& o) {
  add_texts(
      app, "--dry-sequence-breaker",
      [&o](const std::vector<std::string>& all) {
        for (const std::string& one : all) {
          if (one.empty() || (one == "none" && all.size() > 1))
            refuse_value("--dry-sequence-breaker",
                         "'" + one + "': expected a text" +
                             (one.empty() ? "" : "; none cannot be combined with other texts"));
          if (one != "none") o.breakers.push_back(without_escapes(one));
        }
        o.options.set_breakers(o.breakers);
      },
      "DRY: a text that ends a repetition, in place of \\n : \" *; none: no such text; may be "
      "repeated")
      .group(kSamplingGroup)
      .value("TEXT")
      .repeated();
}

void add_sampling_flags(CLI::App& app, CommonOptions& o) {
  add_setting_flags(app, "answer", o.options, false);
  add_setting_flags(app, "sampling", o.options, false);
  add_text(
      app, "-s,--seed", [&o](const std::string& s) { o.seed = parse_seed(s); },
      "same seed, flags and --isa NAME give the same text; -1: random (default)")
      .group(kAnswerGroup)
      .value("N")
      .standard("-1");
  add_dry_breakers_flag(app, o);
  add_texts(
      app, "-l,--logit-bias",
      [&o](const std::vector<std::string>& all) {
        for (const std::string& one : all) {
          const riffle_logit_bias bias = parse_logit_bias(one);
          for (const riffle_logit_bias& other : o.logit_bias)
            if (other.token == bias.token)
              refuse_value("--logit-bias",
                           "token " + std::to_string(bias.token) + " has two biases, expected one");
          o.logit_bias.push_back(bias);
        }
        o.options.set_logit_bias(o.logit_bias);
      },
      "add a number from -100 to 100 to the logit of a token, such as 15043+1; 15043-inf "
      "forbids the token; can be repeated")
      .group(kSamplingGroup)
      .value("TOKEN+X");
}

void add_chat_flag(CLI::App& app, Options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; const char* name = riffle_chat_template_name(i); i++) names.push_back(name);
  add_text(
      app, "--chat-template",
      [&options, names](const std::string& word) {
        if (std::find(names.begin(), names.end(), word) == names.end())
          refuse_value("--chat-template", "'" + word + "' is not one of " + joined(names, "|"));
        options.set("chat-template", word);
      },
      "template of conversations, in place of the model's own: " + joined(names))
      .group(kSamplingGroup)
      .value("NAME");
}

// Reads {"reasoning_effort": "high"}, llama.cpp's form.
void read_template_kwargs(const std::string& text, Thinking* target) {
  const char* const flag = "--chat-template-kwargs";
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object())
    refuse_value(flag, "found '" + text +
                           "', expected a JSON object such as {\"reasoning_effort\": \"high\"}");
  for (const auto& [name, value] : json.items()) {
    if (!is_template_variable(name))
      refuse_value(
          flag, "found the variable '" + name + "', expected enable_thinking or reasoning_effort");
    if (const std::string expected = set_template_variable(name, value, target); !expected.empty())
      refuse_value(flag, name + ": found " + value.dump() + ", expected " + expected);
  }
}

void add_think_flags(CLI::App& app, Thinking& target) {
  // Each also takes =true and =false, as in Ollama.
  const Flag think =
      add_switch_or_word(
          app, "--think",
          [&target](const std::string& word) {
            target.effort = effort_named(word);
            target.enabled = target.effort || is_on(word) ? "on" : "off";
          },
          "ask the model to reason first (enable_thinking of its chat template); "
          "--think=low, --think=medium, --think=high: also how long (reasoning_effort)")
          .group(kSamplingGroup)
          .value(joined({std::begin(kEfforts), std::end(kEfforts)}, "|"));
  const Flag no_think =
      add_switch(
          app, "--no-think", [&target](bool given) { target.enabled = given ? "off" : "on"; },
          "ask the model not to reason; without --think or --no-think the template decides; a "
          "template without enable_thinking ignores both")
          .group(kSamplingGroup)
          .excludes(think);
  add_text(
      app, "--chat-template-kwargs",
      [&target](const std::string& text) { read_template_kwargs(text, &target); },
      "variables of the chat template as a JSON object: enable_thinking, reasoning_effort")
      .group(kSamplingGroup)
      .value("JSON")
      .excludes(think)
      .excludes(no_think);
}

void add_weights_flag(CLI::App& app, Options& options) {
  add_text(
      app, "--weights", [&options](const std::string& type) { options.set("weights", type); },
      "convert the weights to a smaller type while loading (riffle quantize keeps the "
      "result in a file): q8, q6, q5, q4, " +
          joined(split(weight_type_words(), '|')))
      .group(kSamplingGroup)
      .value("TYPE")
      .check(weight_type_error);
}

}  // namespace

std::string weight_type_words() {
  std::string words;
  for (size_t i = 0; const char* name = riffle_weight_type_name(i); ++i)
    words += (i ? "|" : "") + std::string(name);
  return words;
}

std::string weight_type_error(const std::string& word) {
  std::string lower = word;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower.find('|') == lower.npos &&
      ("|q8|q6|q5|q4|" + weight_type_words() + "|").find("|" + lower + "|") != lower.npos)
    return "";
  return "'" + word + "' is not one of q8, q6, q5, q4, " + weight_type_words();
}

void add_stop_flag(CLI::App& app, std::vector<std::string>& stop) {
  add_texts(app, "--stop", stop, "end an answer before this text; may be repeated")
      .group(kSamplingGroup)
      .value("TEXT")
      .repeated()
      .check([](const std::string& text) {
        return text.empty() ? "found an empty text, expected one that ends an answer" : "";
      });
}

void add_common_flags(CLI::App& app, CommonOptions& options, unsigned groups) {
  add_text(app, "-m,--model", options.model_path,
           ".gguf file or folder; default: $RIFFLE_MODEL, else the shipped model")
      .value("PATH")
      .check(not_empty);
  add_switch(app, "-q,--quiet", options.quiet, "print no progress and no statistics on stderr");
  if (groups & CHAT_FLAG) add_chat_flag(app, options.options);
  if (groups & THINK_FLAGS) add_think_flags(app, options.thinking);
  if (groups & WEIGHTS_FLAG) add_weights_flag(app, options.options);
  if (groups & JSON_FLAG)
    add_switch(app, "--json", options.json, "print one JSON object on stdout");
  if (groups & SAMPLING_FLAGS) add_sampling_flags(app, options);
  const bool comparison = groups & COMPARISON_FLAGS;
  if (groups & CONTEXT_FLAGS) add_setting_flags(app, "context", options.options, comparison);
  if (groups & SELECTION_FLAGS)
    for (const SettingRow* s : settings_of("selection"))
      if (comparison || !s->comparison) add_selection_flag(app, *s, options);
}

void add_selection_flag(CLI::App& app, const SettingRow& setting, CommonOptions& options) {
  options.selection_flags.emplace_back(&setting, add_setting_flag(app, setting, options.options));
}

std::string parse_selector(const std::string& word) {
  Options options;
  if (!options.accepts("selector", word))
    refuse_value("--selectors", "'" + word + "': expected " + setting("selector").expected);
  return word;
}

std::optional<uint64_t> size_of(const std::string& text, Unit unit) {
  uint64_t size = 0;
  if (!riffle_read_size(text.c_str(), unit == Unit::BYTES, &size)) return std::nullopt;
  return size;
}

const char* size_examples(Unit unit) {
  return unit == Unit::BYTES ? "such as 512M, 12G or 1.5G" : "such as 4096 or 32K";
}

std::string least_size(uint64_t bytes) {
  const uint64_t mib = std::max<uint64_t>(1, bytes / (1 << 20) + (bytes % (1 << 20) > 0));
  return std::to_string(mib) + "M";
}

std::string size_without_unit(const std::string& text, Unit unit) {
  const std::optional<uint64_t> n = size_of(text, unit);
  const bool digits = text.find_first_not_of("0123456789") == text.npos;
  if (unit != Unit::BYTES || !digits || !n || *n == 0 || *n >= (uint64_t{1} << 20)) return "";
  return "'" + text + "' is " + text + " bytes, expected a size such as " + text +
         (*n < 1000 ? "G" : "M");
}

uint64_t parse_size(const std::string& flag, const std::string& text, Unit unit) {
  if (const std::string why = size_without_unit(text, unit); !why.empty()) refuse_value(flag, why);
  if (const std::optional<uint64_t> n = size_of(text, unit)) return *n;
  refuse_value(flag, "'" + text + "': expected a " +
                         (unit == Unit::BYTES ? "size " : "whole number ") + size_examples(unit));
}

std::vector<int64_t> parse_size_list(const std::string& flag, const std::string& text) {
  std::vector<int64_t> out;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');)
    out.push_back(static_cast<int64_t>(parse_size(flag, item, Unit::COUNT)));
  if (out.empty()) refuse_value(flag, "found an empty list, expected numbers such as 512,4K");
  return out;
}

}  // namespace riffle::cli
