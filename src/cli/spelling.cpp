#include "cli/spelling.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "cli/common.h"

namespace riffle::cli {
namespace {

// Flags of llama.cpp and Ollama. ours: the flag that means the same; else answer says what to do.
struct Foreign {
  std::vector<std::string> flags;
  const char *ours, *answer;
};

const std::vector<Foreign>& foreign_flags() {
  static const std::vector<Foreign> all = {
      {{"--n-predict", "--predict", "--num-predict"}, "--max-tokens", ""},
      {{"--ctx-size", "--num-ctx"}, "--ctx", ""},
      {{"--temperature"}, "--temp", ""},
      {{"--system-prompt", "-sys"}, "--system", ""},
      {{"--grammar-file"}, "--grammar", ""},
      {{"-j", "--json-schema-file"}, "--json-schema", ""},
      {{"-ngl", "--n-gpu-layers", "--gpu-layers"},
       "",
       "riffle runs all layers on one device: --device cuda or --device cpu; --gpu-mem SIZE limits "
       "the GPU memory, and KV beyond it stays in host memory"},
      {{"-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"},
       "",
       "--cpu-experts N keeps the experts of N layers in host memory; without it riffle does so "
       "where "
       "the GPU is too small"},
      {{"-fa", "--flash-attn"}, "", "riffle's attention needs no switch: leave the flag out"},
      {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"},
       "",
       "--kv f16, q8 or f32 sets the type of keys and values"},
      {{"-ub", "--ubatch-size", "--batch-size"},
       "",
       "--prefill-chunk N sets the tokens of one chunk of prefill"},
      {{"-np"}, "", "riffle batch --max-seqs N answers several prompts at once"},
      {{"-tb", "--threads-batch"}, "", "--threads N is for prefill and decode"},
      {{"--mlock", "--no-mmap"}, "", "riffle maps the weights: leave the flag out"},
      {{"-i", "-cnv", "--interactive", "--interactive-first", "--conversation"},
       "",
       "riffle chat is a conversation"},
      {{"--draft", "--draft-max", "--draft-n", "--draft-min", "-md", "--model-draft", "--spec-type",
        "-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"},
       "",
       "--lookup N computes up to N tokens ahead, as the prompt and the answer have them; riffle "
       "has no draft models and no lookup files"},
      {{"-r", "--reverse-prompt"}, "", "--stop TEXT ends an answer before TEXT"},
      {{"--mirostat", "--typical", "--top-nsigma"},
       "",
       "riffle's sampler has --temp, --top-k, --top-p, --min-p, --xtc-probability, "
       "--dry-multiplier, --repeat-penalty, --frequency-penalty and --presence-penalty"},
      {{"--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"},
       "",
       "the model's file sets its RoPE"},
      {{"-hf", "--hf-repo", "-mu", "--model-url"},
       "",
       "riffle downloads nothing: -m PATH takes a .gguf file or a Hugging Face folder"},
      {{"--jinja", "--chat-template-file"}, "", "--chat-template NAME sets a template"},
      {{"--verbose"}, "", "statistics are on stderr unless -q is given"},
      {{"--format"}, "", "--json prints one JSON object"},
  };
  return all;
}

struct ForeignCommand {
  std::vector<std::string> names;
  const char* answer;
};

const std::vector<ForeignCommand>& foreign_commands() {
  static const std::vector<ForeignCommand> all = {
      {{"list", "ls"}, "riffle keeps no list of models: riffle info -m PATH shows one"},
      {{"show"}, "riffle info -m PATH shows a model"},
      {{"pull", "push", "create", "cp", "rm"},
       "riffle downloads and manages no models: -m PATH takes a .gguf file or a Hugging Face "
       "folder"},
      {{"serve", "server", "start"},
       "riffle has no server: riffle batch answers the lines of a JSONL file, and riffle.h is the "
       "C library"},
      {{"ps", "stop"},
       "riffle leaves nothing running: each command loads its model, answers and ends"},
      {{"generate", "complete", "completion"}, "riffle run -p TEXT answers one prompt"},
      {{"convert"}, "riffle quantize -m PATH -o FILE.gguf writes a GGUF file"},
      {{"version"}, "riffle --version prints it"},
  };
  return all;
}

// Insertions, deletions, changes and swaps of neighbours that make a of b.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// The nearest of the words; "" if none is near.
class Nearest {
 public:
  explicit Nearest(std::string typed) : typed_(std::move(typed)) {}
  // meant: what to show in place of the word.
  void add(const std::string& word, const std::string& meant) {
    size_t d = distance(typed_, word);
    const size_t shorter = std::min(typed_.size(), word.size());
    // A word cut short, or with more behind it.
    if (shorter >= 3 && typed_.compare(0, shorter, word, 0, shorter) == 0)
      d = std::min<size_t>(d, 2);
    if (d > std::max<size_t>(1, typed_.size() / 3) || d >= best_) return;
    best_ = d;
    meant_ = meant;
  }
  const std::string& meant() const { return meant_; }

 private:
  std::string typed_, meant_;
  size_t best_ = SIZE_MAX;
};

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* sub : commands_of(app))
    names += (names.empty() ? "" : ", ") + sub->get_name();
  return names;
}

const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  for (const CLI::App* sub : commands_of(app))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

const CLI::Option* option_of(const CLI::App& command, const std::string& flag) {
  return command.get_option_no_throw(flag);
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

const Foreign* foreign(const std::string& flag) {
  for (const Foreign& f : foreign_flags())
    if (std::find(f.flags.begin(), f.flags.end(), flag) != f.flags.end()) return &f;
  return nullptr;
}

// What a line of a batch has in place of a flag; "": nothing.
std::string field_of_line(const CLI::App& command, const std::string& flag) {
  static const std::map<std::string, std::string> fields = {
      {"--json-schema", "response_format"},
      {"--grammar", "grammar"},
      {"--stop", "stop"},
      {"--system", "messages, with a message of role system"},
      {"--prompt", "messages or prompt"},
      {"-p", "messages or prompt"}};
  const auto it = command.get_name() == "batch" ? fields.find(flag) : fields.end();
  return it == fields.end() ? "" : "; a line's body has " + it->second;
}

[[noreturn]] void refuse_flag(const CLI::App& app, const CLI::App& command,
                              const std::string& flag) {
  const std::string unknown = "unknown flag " + flag;
  std::string others;
  for (const CLI::App* sub : commands_of(app))
    if (option_of(*sub, flag)) others += (others.empty() ? "" : ", ") + sub->get_name();
  if (!others.empty())
    throw Exit(EXIT_USAGE, unknown + " of riffle " + command.get_name() +
                               "; these have it: " + others + field_of_line(command, flag));
  Nearest nearest(flag.substr(flag.find_first_not_of('-')));
  for (const CLI::Option* o : command.get_options()) {
    for (const std::string& name : o->get_lnames()) nearest.add(name, "--" + name);
  }
  for (const Foreign& f : foreign_flags())
    for (const std::string& name : f.flags)
      if (*f.ours && name.size() > 2 && option_of(command, f.ours))
        nearest.add(name.substr(name.find_first_not_of('-')), f.ours);
  throw Exit(EXIT_USAGE, nearest.meant().empty()
                             ? unknown
                             : unknown + "; did you mean " + nearest.meant() + "?");
}

[[noreturn]] void refuse_command(const CLI::App& app, const std::string& word) {
  for (const ForeignCommand& c : foreign_commands())
    if (std::find(c.names.begin(), c.names.end(), word) != c.names.end())
      throw Exit(EXIT_USAGE, "'" + word + "' is no command: " + c.answer);
  Nearest nearest(word);
  for (const CLI::App* sub : commands_of(app)) nearest.add(sub->get_name(), sub->get_name());
  const std::string meant =
      nearest.meant().empty() ? "" : "; did you mean " + nearest.meant() + "?";
  throw Exit(EXIT_USAGE,
             "'" + word + "' is no command, expected a command: " + command_names(app) + meant);
}

// The flags in one word of args: "--name", "--name=value", "-n", "-nVALUE", "-qn". Replaces it by
// riffle's spelling. Returns whether the next word is its value.
bool read_flag(const CLI::App& app, const CLI::App& command, std::string& word) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  if (const CLI::Option* o = option_of(command, name))
    return takes_value(*o) && equals == word.npos;
  if (const Foreign* f = foreign(name)) {
    if (!*f->ours) throw Exit(EXIT_USAGE, name + ": " + f->answer);
    const CLI::Option* o = option_of(command, f->ours);
    if (!o) refuse_flag(app, command, f->ours);
    word = f->ours + (equals == word.npos ? "" : word.substr(equals));
    return takes_value(*o) && equals == word.npos;
  }
  if (word.starts_with("--")) refuse_flag(app, command, name);
  // A long flag with one dash; the parser would take the first letter as a flag.
  if (name.size() > 2 && option_of(command, "-" + name))
    throw Exit(EXIT_USAGE, "unknown flag " + name + "; did you mean -" + name + "?");
  for (size_t i = 1; i < word.size(); ++i) {
    const CLI::Option* o = option_of(command, std::string("-") + word[i]);
    if (!o && i == 1) refuse_flag(app, command, word);
    if (!o) return false;  // the parser says so
    if (takes_value(*o)) return i + 1 == word.size();
  }
  return false;
}

}  // namespace

std::vector<std::string> spelled(std::vector<std::string> args, const CLI::App& app) {
  if (args.empty()) throw Exit(EXIT_USAGE, "expected a command: " + command_names(app));
  if (args[0] == "help") {
    args.erase(args.begin());
    args.resize(std::min<size_t>(args.size(), 1));
    args.push_back("--help");
  }
  if (args[0].starts_with("-")) {
    if (!option_of(app, args[0]))
      throw Exit(EXIT_USAGE, "unknown flag " + args[0] + ": flags follow a command");
    return args;
  }
  const CLI::App* command = command_named(app, args[0]);
  if (!command) refuse_command(app, args[0]);
  for (size_t i = 1; i < args.size() && args[i] != "--"; ++i) {
    const std::string& word = args[i];
    if (word.size() < 2 || word[0] != '-') continue;
    if (word[1] != '-' && !std::isalpha(static_cast<unsigned char>(word[1]))) continue;
    if (read_flag(app, *command, args[i])) ++i;  // its value may look like a flag
  }
  return args;
}

}  // namespace riffle::cli
