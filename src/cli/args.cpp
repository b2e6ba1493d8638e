#include "cli/args.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "cli/selection_settings.h"

namespace riffle::cli {
namespace {

template <typename T>
using Names = std::vector<std::pair<const char*, T>>;

const Names<riffle_selector> kSelectors = {{"dense", RIFFLE_SELECTOR_DENSE},
                                           {"psa", RIFFLE_SELECTOR_PSA},
                                           {"topk", RIFFLE_SELECTOR_TOPK},
                                           {"twilight", RIFFLE_SELECTOR_TWILIGHT},
                                           {"tokenselect", RIFFLE_SELECTOR_TOKENSELECT},
                                           {"lfps", RIFFLE_SELECTOR_LFPS},
                                           {"share", RIFFLE_SELECTOR_SHARE}};
const Names<riffle_base> kBases = {
    {"all", RIFFLE_BASE_ALL}, {"topk", RIFFLE_BASE_TOPK}, {"psa", RIFFLE_BASE_PSA}};
const Names<riffle_vote> kVotes = {
    {"soft", RIFFLE_VOTE_SOFT}, {"logits", RIFFLE_VOTE_LOGITS}, {"hard", RIFFLE_VOTE_HARD}};
const Names<riffle_positions> kPositions = {{"true", RIFFLE_POSITIONS_TRUE},
                                            {"list", RIFFLE_POSITIONS_LIST}};
const Names<riffle_digest> kDigests = {{"mean", RIFFLE_DIGEST_MEAN},
                                       {"quest", RIFFLE_DIGEST_QUEST},
                                       {"cuboid-mean", RIFFLE_DIGEST_CUBOID_MEAN}};
const Names<riffle_gqa> kGqas = {
    {"mean", RIFFLE_GQA_MEAN}, {"soft-sum", RIFFLE_GQA_SOFT_SUM}, {"union", RIFFLE_GQA_UNION}};
const Names<riffle_rank> kRanks = {{"digests", RIFFLE_RANK_DIGESTS}, {"codes", RIFFLE_RANK_CODES}};
const Names<riffle_stop> kStops = {{"paper", RIFFLE_STOP_PAPER},
                                   {"window", RIFFLE_STOP_WINDOW},
                                   {"bound", RIFFLE_STOP_BOUND},
                                   {"veto", RIFFLE_STOP_VETO}};
const Names<riffle_device> kDevices = {{"auto", RIFFLE_DEVICE_AUTO},
                                       {"cpu", RIFFLE_DEVICE_CPU},
                                       {"emu", RIFFLE_DEVICE_EMU},
                                       {"cuda", RIFFLE_DEVICE_CUDA}};
const Names<riffle_residency> kResidencies = {{"auto", RIFFLE_RESIDENCY_AUTO},
                                              {"device", RIFFLE_RESIDENCY_DEVICE},
                                              {"host", RIFFLE_RESIDENCY_HOST}};
const Names<riffle_isa> kIsas = {{"auto", RIFFLE_ISA_AUTO},
                                 {"scalar", RIFFLE_ISA_SCALAR},
                                 {"avx2", RIFFLE_ISA_AVX2},
                                 {"avx512", RIFFLE_ISA_AVX512},
                                 {"amx", RIFFLE_ISA_AMX}};
const Names<riffle_kv_type> kKvTypes = {{"f16", RIFFLE_KV_F16}, {"f32", RIFFLE_KV_F32}};
const Names<riffle_evict> kEvicts = {{"lru", RIFFLE_EVICT_LRU}, {"fifo", RIFFLE_EVICT_FIFO}};
const Names<bool> kPools = {{"unified", false}, {"per-layer", true}};
const Names<int32_t> kBlocks = {{"16", 16}, {"32", 32}, {"64", 64}};

template <typename T>
const char* name_of(const Names<T>& names, T value) {
  for (const auto& [name, v] : names)
    if (v == value) return name;
  return "?";
}

template <typename T>
std::string words(const Names<T>& names, const char* separator = "|") {
  std::string s;
  for (const auto& [name, v] : names) s += (s.empty() ? "" : separator) + std::string(name);
  return s;
}

template <typename T>
T value_of(const Names<T>& names, const std::string& flag, const std::string& word) {
  for (const auto& [name, v] : names)
    if (word == name) return v;
  throw CLI::ValidationError(flag, "'" + word + "': expected one of " + words(names, ", "));
}

// Flags under one heading of the help.
struct Group {
  CLI::App& app;
  const char* heading;
};

// A flag whose value is one of a few words. Its place in the help shows the words and the default.
template <typename T>
void choice(Group g, const std::string& flag, T& target, const Names<T>& names,
            const std::string& text) {
  g.app
      .add_option_function<std::string>(
          flag,
          [&target, &names, flag](const std::string& word) {
            target = value_of(names, flag, word);
          },
          text)
      ->group(g.heading)
      ->type_name(words(names))
      ->default_str(name_of(names, target));
}

// A flag that counts: takes K, M, G. What does not fit T is refused.
template <typename T>
void size_flag(Group g, const std::string& flag, T& target, const std::string& text,
               uint64_t least = 0) {
  const std::string name = flag.substr(flag.rfind(',') + 1);
  g.app
      .add_option_function<std::string>(
          flag,
          [&target, name, least](const std::string& s) {
            const uint64_t v = parse_size(name, s),
                           most = static_cast<uint64_t>(std::numeric_limits<T>::max());
            if (v < least || v > most)
              throw CLI::ValidationError(name, "'" + s + "': expected " + std::to_string(least) +
                                                   " to " + std::to_string(most));
            target = static_cast<T>(v);
          },
          text)
      ->group(g.heading)
      ->type_name("N")
      ->default_str(std::to_string(target));
}

// A number in a range; NaN and infinities are refused.
template <typename T>
void number_flag(Group g, const std::string& flag, T& target, double low, double high,
                 const std::string& text) {
  std::ostringstream shown;
  shown << target;
  g.app.add_option(flag, target, text)
      ->group(g.heading)
      ->type_name("X")
      ->default_str(shown.str())
      ->check([low, high](const std::string& s) -> std::string {
        double v = 0;
        const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
        if (error != std::errc() || end != s.data() + s.size() || !(v >= low && v <= high)) {
          std::ostringstream e;
          e << "'" << s << "': expected a number, " << std::setprecision(10) << low << " to "
            << high;
          return e.str();
        }
        return "";
      });
}

constexpr double kMaxInt = 2147483647.0;

void add_context_flags(CLI::App& app, riffle_context_options& c) {
  const Group g{app, "Context"};
  choice(g, "--device", c.device, kDevices,
         "where the model runs; emu is a GPU's slot pool emulated on the CPU");
  app.add_flag("--no-pin", c.no_pin,
               "cuda: do not pin host memory (slow; for selectors dense, and psa and topk ranked "
               "by digests)")
      ->group(g.heading);
  choice(g, "--residency", c.residency, kResidencies,
         "cuda: who decides which blocks are in GPU memory; host is for selectors dense, and psa "
         "and topk ranked by digests");
  size_flag(g, "--threads", c.n_threads, "CPU threads; 0: one per core");
  size_flag(g, "-c,--ctx", c.n_ctx,
            "context length in tokens; 0: the model's trained length, or what fits memory of it");
  choice(g, "--block", c.block_size, kBlocks, "tokens per KV block");
  choice(g, "--kv", c.kv_type, kKvTypes, "type of stored keys and values");
  choice(g, "--isa", c.isa, kIsas, "CPU instruction set");
  size_flag(g, "--slots", c.slots, "KV pool size in blocks; 0: from --gpu-mem");
  size_flag(g, "--gpu-mem", c.gpu_mem,
            "memory budget in bytes (12G) for weights, buffers and pool; 0: no limit");
  size_flag(g, "--host-mem", c.host_mem,
            "host memory in bytes (32G) for the KV of all sequences; 0: no limit, in batch three "
            "quarters of the machine's");
  choice(g, "--evict", c.evict, kEvicts, "what leaves a full pool");
  choice(g, "--pool", c.pool_per_layer, kPools, "one pool for all layers, or split evenly");
  size_flag(g, "--prefill-chunk", c.prefill_chunk, "tokens per chunk of prefill; 0: default");
}

void add_selection_flags(CLI::App& app, CommonOptions& options) {
  riffle_selection& s = options.context.selection;
  for (const SelectionSetting& setting : selection_settings()) {
    const CLI::Option* const flag =
        app.add_option_function<std::string>(
               setting.flag,
               [&s, &setting](const std::string& text) {
                 if (!setting.set(s, text))
                   throw CLI::ValidationError(setting.flag,
                                              "'" + text + "': expected " + setting.expected);
               },
               setting.help)
            ->group("Selection of KV blocks in decode")
            ->type_name(setting.type)
            ->default_str(setting.text(s));
    options.selection_flags.emplace_back(&setting, flag);
  }
}

// None for -1, which llama.cpp's users know as "random".
std::optional<uint64_t> parse_seed(const std::string& text) {
  if (text == "-1") return std::nullopt;
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc() || stop != end)
    throw CLI::ValidationError("--seed", "'" + text + "': expected a whole number from 0 to " +
                                             std::to_string(UINT64_MAX) +
                                             ", or -1 for a random seed");
  return seed;
}

void add_sampling_flags(CLI::App& app, CommonOptions& o) {
  const Group g{app, "Answer"};
  number_flag(g, "-n,--max-tokens", o.max_tokens, -1, kMaxInt,
              "tokens to generate; -1: until the context is full");
  number_flag(g, "--temp", o.sampling.temperature, 0, 1e6, "temperature; 0: greedy");
  number_flag(g, "--top-k", o.sampling.top_k, 0, kMaxInt, "sample among the k likeliest; 0: off");
  number_flag(g, "--top-p", o.sampling.top_p, 0, 1,
              "sample among the likeliest that make up p; 1: off");
  number_flag(g, "--min-p", o.sampling.min_p, 0, 1,
              "drop what is below this share of the likeliest; 0: off");
  app.add_option_function<std::string>(
         "-s,--seed", [&o](const std::string& s) { o.seed = parse_seed(s); },
         "the same seed gives the same text; -1: a random one, which is reported")
      ->group(g.heading)
      ->type_name("N")
      ->default_str("-1");
}

void add_chat_flag(CLI::App& app, std::string& target) {
  std::string names;
  for (size_t i = 0; const char* name = riffle_chat_template_name(i); i++)
    names += (i ? "|" : "") + std::string(name);
  app.add_option_function<std::string>(
         "--chat-template",
         [&target, names](const std::string& word) {
           if (("|" + names + "|").find("|" + word + "|") == names.npos ||
               word.find('|') != word.npos)
             throw CLI::ValidationError("--chat-template", "'" + word + "' is not one of " + names);
           target = word;
         },
         "how conversations are written, in place of the model's own template: " + names)
      ->type_name("NAME");
}

void add_weights_flag(CLI::App& app, std::string& target) {
  app.add_option("--weights", target,
                 "convert matrices that take more bits to this type while loading; riffle quantize "
                 "keeps the result in a file")
      ->type_name("q8|q6|q5|q4|" + weight_type_words())
      ->check(weight_type_error);
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

CommonOptions::CommonOptions() {
  riffle_context_defaults(&context);
  riffle_sampling_defaults(&sampling);
  riffle_generate_options generate;
  riffle_generate_defaults(&generate);
  max_tokens = generate.max_tokens;
}

void add_common_flags(CLI::App& app, CommonOptions& options, unsigned groups) {
  app.add_option(
         "-m,--model", options.model_path,
         ".gguf file or Hugging Face folder; default: $RIFFLE_MODEL, else the shipped model")
      ->type_name("PATH");
  app.add_flag("-q,--quiet", options.quiet, "no progress and no statistics on stderr");
  if (groups & CHAT_FLAG) add_chat_flag(app, options.chat_template);
  if (groups & WEIGHTS_FLAG) add_weights_flag(app, options.weights);
  if (groups & JSON_FLAG) app.add_flag("--json", options.json, "one JSON object on stdout");
  if (groups & SAMPLING_FLAGS) add_sampling_flags(app, options);
  if (groups & CONTEXT_FLAGS) add_context_flags(app, options.context);
  if (groups & SELECTION_FLAGS) add_selection_flags(app, options);
}

const char* selector_name(riffle_selector v) { return name_of(kSelectors, v); }
const char* base_name(riffle_base v) { return name_of(kBases, v); }
const char* vote_name(riffle_vote v) { return name_of(kVotes, v); }
const char* positions_name(riffle_positions v) { return name_of(kPositions, v); }
const char* digest_name(riffle_digest v) { return name_of(kDigests, v); }
const char* gqa_name(riffle_gqa v) { return name_of(kGqas, v); }
const char* rank_name(riffle_rank v) { return name_of(kRanks, v); }
const char* stop_name(riffle_stop v) { return name_of(kStops, v); }
const char* residency_name(riffle_residency v) { return name_of(kResidencies, v); }
const char* device_name(riffle_device v) { return name_of(kDevices, v); }
const char* isa_name(riffle_isa v) { return name_of(kIsas, v); }
const char* kv_name(riffle_kv_type v) { return name_of(kKvTypes, v); }
const char* evict_name(riffle_evict v) { return name_of(kEvicts, v); }

riffle_selector parse_selector(const std::string& word) {
  return value_of(kSelectors, "--selectors", word);
}

uint64_t parse_size(const std::string& flag, const std::string& text) {
  const auto bad = [&]() {
    return CLI::ValidationError(flag, "'" + text + "' is not a number such as 4096, 32K or 1.5G");
  };
  double v = 0;
  const char* end = text.data() + text.size();
  auto [p, error] = std::from_chars(text.data(), end, v);
  if (error != std::errc() || !(v >= 0)) throw bad();
  bool scaled = false;
  if (p != end) {
    const std::string_view suffixes = "kmgt";
    const size_t i = suffixes.find(static_cast<char>(*p | 0x20));
    if (i == suffixes.npos) throw bad();
    v = std::ldexp(v, 10 * static_cast<int>(i + 1));
    scaled = true;
    ++p;
    // 12G, 12GB and 12GiB all mean 12 * 2^30.
    if (std::string_view rest(p, static_cast<size_t>(end - p));
        !rest.empty() && rest != "B" && rest != "iB")
      throw bad();
  }
  if (!(v < 9.2e18) || (!scaled && v != std::floor(v))) throw bad();
  return static_cast<uint64_t>(v);
}

std::vector<int64_t> parse_size_list(const std::string& flag, const std::string& text) {
  std::vector<int64_t> out;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');)
    out.push_back(static_cast<int64_t>(parse_size(flag, item)));
  if (out.empty()) throw CLI::ValidationError(flag, "the list is empty");
  return out;
}

}  // namespace riffle::cli
