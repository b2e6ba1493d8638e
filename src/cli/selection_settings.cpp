#include "cli/selection_settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/args.h"
#include "cli/common.h"

namespace riffle::cli {
namespace {

riffle_selection_field field_of(const std::string& member) {
  riffle_selection_field field{};
  field.struct_size = sizeof field;
  for (size_t i = 0; riffle_selection_get_field(i, &field) == RIFFLE_OK; ++i)
    if (member == field.name) return field;
  throw std::logic_error("riffle_selection has no member " + member);
}

// 0.1, 2048, 2K.
std::optional<double> number_of(const std::string& text) {
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc()) return std::nullopt;
  if (end == text.data() + text.size()) return v;
  try {
    return static_cast<double>(parse_size("", text));
  } catch (const CLI::ValidationError&) {
    return std::nullopt;
  }
}

bool allows(const riffle_selection_field& f, double v) {
  return v >= f.low && v <= f.high && !(f.above_low && v == f.low) &&
         !(f.below_high && v == f.high);
}

SelectionSetting named(const std::string& name, const std::string& member,
                       const std::string& help) {
  SelectionSetting s;
  s.name = name;
  s.flag = "--" + (name == "stop" ? "stop-mode" : name);
  std::replace(s.flag.begin(), s.flag.end(), '_', '-');
  s.help = help;
  s.field = field_of(member);
  return s;
}

template <typename T>
SelectionSetting number_setting(const std::string& name, const std::string& member,
                                T riffle_selection::*at, const std::string& help) {
  SelectionSetting s = named(name, member, help);
  const riffle_selection_field field = s.field;
  s.type = field.whole ? "N" : "X";
  s.is_number = true;
  s.expected = std::string(field.whole ? "a whole number, " : "a number, ") + field.range;
  s.set = [=](riffle_selection& to, const std::string& text) {
    const std::optional<double> v = number_of(text);
    if (!v || !allows(field, *v)) return false;
    const T value = static_cast<T>(*v);
    // As it will be held: a float may round to what is not allowed, a fraction is no count.
    if (!allows(field, static_cast<double>(value)) ||
        (field.whole && static_cast<double>(value) != *v))
      return false;
    to.*at = value;
    return true;
  };
  s.text = [=](const riffle_selection& from) {
    return text_of("%g", static_cast<double>(from.*at));
  };
  return s;
}

// The library's enums count from 0, and spell gives "?" beyond their end.
template <typename Enum>
SelectionSetting word_setting(const std::string& name, const std::string& member,
                              Enum riffle_selection::*at, const char* (*spell)(Enum),
                              const std::string& help) {
  SelectionSetting s = named(name, member, help);
  std::vector<std::string> words;
  for (int i = 0; std::string(spell(static_cast<Enum>(i))) != "?"; ++i)
    words.push_back(spell(static_cast<Enum>(i)));
  s.is_number = false;
  s.expected = "one of ";
  for (const std::string& w : words) {
    s.type += (s.type.empty() ? "" : "|") + w;
    s.expected += (&w == words.data() ? "" : ", ") + w;
  }
  s.set = [=](riffle_selection& to, const std::string& text) {
    const auto word = std::find(words.begin(), words.end(), text);
    if (word == words.end()) return false;
    to.*at = static_cast<Enum>(word - words.begin());
    return true;
  };
  s.text = [=](const riffle_selection& from) { return std::string(spell(from.*at)); };
  return s;
}

}  // namespace

const std::vector<SelectionSetting>& selection_settings() {
  using S = riffle_selection;
  static const std::vector<SelectionSetting> all = {
      word_setting(
          "selector", "selector", &S::selector, selector_name,
          "share: blocks with more than --share of a head's weight; dense: all; psa: best first "
          "until --epsilon; topk: a fixed --budget; twilight, tokenselect, lfps: see README"),
      word_setting("digest", "digest", &S::digest, digest_name,
                   "psa, topk, twilight: summary by which blocks are ranked"),
      word_setting("gqa", "gqa", &S::gqa, gqa_name,
                   "psa, topk, twilight: how query heads of a group agree on a ranking"),
      word_setting("rank", "rank", &S::rank, rank_name,
                   "psa, topk: rank blocks by digests, or by INT4 keys of all tokens"),
      word_setting("stop", "stop", &S::stop, stop_name, "psa: how it decides to stop"),
      number_setting("epsilon", "epsilon", &S::epsilon,
                     "psa: share of attention weight to cover; 1 reads everything"),
      number_setting("budget", "budget", &S::budget,
                     "topk: up to 1 a share of the KV, above 1 a number of tokens"),
      number_setting("microbatch", "microbatch", &S::microbatch, "psa: blocks between two tests"),
      number_setting("sink_blocks", "sink_blocks", &S::sink_blocks,
                     "first blocks that are always read"),
      number_setting("window_blocks", "window_blocks", &S::window_blocks,
                     "last full blocks that are always read"),
      number_setting("dense_layers", "dense_layers", &S::dense_layers,
                     "first layers that read everything"),
      word_setting("base", "base", &S::base, base_name, "twilight: what it starts from"),
      number_setting("base_budget", "base_budget", &S::base_budget,
                     "twilight --base topk: KV whose INT4 keys are looked at"),
      number_setting("top_p_attn", "top_p", &S::top_p,
                     "twilight: share of the estimated attention weight to read"),
      number_setting("share", "share", &S::share,
                     "share: a block is read if a head gives it more than this share of its "
                     "weight; beyond 1,024 blocks it falls as 1 / blocks"),
      number_setting("select_tokens", "select_tokens", &S::select_tokens,
                     "tokenselect: tokens that the heads vote for"),
      number_setting("init_tokens", "init_tokens", &S::init_tokens,
                     "tokenselect: first tokens that are always read"),
      number_setting("local_tokens", "local_tokens", &S::local_tokens,
                     "tokenselect: last tokens that are always read"),
      word_setting("vote", "vote", &S::vote, vote_name, "tokenselect: how heads agree"),
      number_setting("vote_scale", "vote_scale", &S::vote_scale,
                     "tokenselect: factor of the vote's logits"),
      number_setting(
          "cache_threshold", "cache_threshold", &S::cache_threshold,
          "tokenselect: cosine of queries from which a selection is used again; above 1: never"),
      word_setting("positions", "positions", &S::positions, positions_name,
                   "tokenselect: positions in the text, or in the list that is read (goes beyond "
                   "the trained context)"),
      number_setting("top_tokens", "top_tokens", &S::top_tokens,
                     "lfps: tokens read, up to 1 a share, above 1 a number"),
      number_setting("alpha", "alpha", &S::alpha, "lfps: larger, fewer candidates"),
      number_setting("rate", "rate", &S::rate,
                     "lfps: share of the tokens that become candidates; 0: by --alpha"),
      number_setting("decay", "decay", &S::decay, "lfps: of its tables, per step"),
      number_setting("bypass", "bypass", &S::bypass,
                     "lfps: weight of the first tokens from which no others are read; 1: never"),
      number_setting(
          "lookahead", "lookahead", &S::lookahead,
          "psa where the host fills the pool (emu, --residency host): microbatches loaded ahead"),
  };
  return all;
}

const SelectionSetting* selection_setting(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  if (name == "stop_mode") name = "stop";  // as the flag is called
  for (const SelectionSetting& s : selection_settings())
    if (s.name == name) return &s;
  return nullptr;
}

namespace {
template <typename Enum>
std::string names_in(uint32_t bits, const char* (*spell)(Enum)) {
  std::string names;
  for (int i = 0; i < 32; ++i)
    if (bits >> i & 1)
      names += (names.empty() ? "" : ", ") + std::string(spell(static_cast<Enum>(i)));
  return names;
}
}  // namespace

std::string SelectionSetting::selectors() const { return names_in(field.selectors, selector_name); }
std::string SelectionSetting::bases() const { return names_in(field.bases, base_name); }

}  // namespace riffle::cli
