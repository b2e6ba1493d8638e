// Functions of riffle.h and riffle_tools.h: options by name, and the table of settings.
#include <memory>
#include <vector>

#include "api/api_handles.h"
#include "api/info.h"
#include "api/options.h"
#include "chat/chat_family.h"
#include "chat/template_date.h"
#include "grammar/grammar.h"
#include "quantize/weight_mix.h"
#include "util/nearest_word.h"
#include "util/size_text.h"

using namespace riffle;

void* riffle_options::part(OptionsKind kind) {
  switch (kind) {
    case OptionsKind::MODEL: return &model;
    case OptionsKind::CONTEXT: return &context;
    case OptionsKind::SELECTION: return &context.selection;
    case OptionsKind::SCHEDULER: return &scheduler;
    case OptionsKind::SAMPLING: return &answer.sampling;
    case OptionsKind::ANSWER: return &answer;
    case OptionsKind::CHAT: return &chat;
    case OptionsKind::QUANTIZE: break;
  }
  return &quantize;
}

namespace riffle {

// Made when the library is loaded, so that no call has to make it.
static const riffle_options kDefaults;

const riffle_options& options_or_defaults(const riffle_options* options) {
  return options ? *options : kDefaults;
}

const Setting& known_setting(const char* name) {
  require(name, "name");
  if (const Setting* s = setting_named(name)) return *s;
  const std::string nearest = nearest_setting(name);
  if (nearest.empty())
    fail(RIFFLE_BAD_ARGUMENT, "there is no option '%.100s'; riffle run --help-all lists them",
         name);
  fail(RIFFLE_BAD_ARGUMENT, "there is no option '%.100s'; the nearest is %s", name,
       nearest.c_str());
}

void set_option(const Setting& s, riffle_options& options, const char* value) {
  require(value, "value");
  const std::string_view id = s.id;
  // Checks values that only models and formats know.
  if (*value && id == "model.weights") (void)weight_mix_named(value);
  if (*value && id == "model.chat_template") (void)chat_family_named(value);
  TemplateDate date;
  if (*value && id == "chat.date" && !read_date(value, &date))
    fail(RIFFLE_BAD_ARGUMENT, "`chat.date`: '%.40s': expected a date such as 2026-11-23", value);
  set_setting_text(s, options.part(s.options), value);
}

}  // namespace riffle

namespace {

template <class Body>
riffle_status on_options(riffle_options* o, Body&& body) {
  if (!o) return RIFFLE_BAD_ARGUMENT;
  return guarded(o->error, sizeof o->error, body, o->context.setting_name);
}

std::vector<std::string> texts_of(const char* const* texts, size_t n, const char* what) {
  require(texts || !n, what);
  std::vector<std::string> out;
  for (size_t i = 0; i < n; ++i) {
    if (!texts[i] || !*texts[i])
      fail(RIFFLE_BAD_ARGUMENT, "%s[%zu] is %s, expected a text", what, i,
           texts[i] ? "empty" : "NULL");
    out.emplace_back(texts[i]);
  }
  return out;
}

// Made once: facts of settings are static.
const std::vector<riffle_info>& setting_facts() {
  static const std::vector<riffle_info> all = [] {
    std::vector<riffle_info> facts;
    for (const Setting& s : settings()) facts.push_back(facts_of(s));
    return facts;
  }();
  return all;
}

}  // namespace

extern "C" {

riffle_options* riffle_options_create(void) {
  riffle_options* made = nullptr;
  guarded(nullptr, 0, [&] { made = std::make_unique<riffle_options>().release(); });
  return made;
}

riffle_options* riffle_options_copy(const riffle_options* options) {
  riffle_options* made = nullptr;
  guarded(nullptr, 0, [&] {
    made = std::make_unique<riffle_options>(options_or_defaults(options)).release();
    made->error[0] = '\0';
  });
  return made;
}

void riffle_options_free(riffle_options* options) { delete options; }

riffle_status riffle_options_set(riffle_options* options, const char* name, const char* value) {
  return on_options(options, [&] { set_option(known_setting(name), *options, value); });
}

const char* riffle_options_get(const riffle_options* options, const char* name) {
  const char* text = nullptr;
  guarded(nullptr, 0, [&] {
    const Setting* const s = name ? setting_named(name) : nullptr;
    if (!s || !options) return;
    options->text = setting_text(*s, options->part(s->options));
    text = options->text.c_str();
  });
  return text;
}

const char* riffle_options_error(const riffle_options* options) {
  return options ? options->error : "options is NULL";
}

void riffle_options_set_progress(riffle_options* options, riffle_progress_fn progress, void* user) {
  if (!options) return;
  options->context.progress = progress;
  options->context.progress_user = user;
}

void riffle_options_set_names(riffle_options* options, riffle_setting_name_fn names) {
  if (options) options->context.setting_name = names;
}

riffle_status riffle_options_set_stop(riffle_options* options, const char* const* stop,
                                      size_t n_stop) {
  return on_options(options, [&] { options->answer.stop = texts_of(stop, n_stop, "stop"); });
}

riffle_status riffle_options_set_breakers(riffle_options* options, const char* const* breakers,
                                          size_t n) {
  return on_options(options, [&] {
    auto& own = options->answer.sampling.dry_sequence_breakers;
    if (breakers || n) own = texts_of(breakers, n, "breakers");
    else own.reset();
  });
}

riffle_status riffle_options_set_logit_bias(riffle_options* options, const riffle_logit_bias* bias,
                                            size_t n) {
  return on_options(options, [&] {
    require(bias || !n, "bias");
    options->answer.sampling.logit_bias.assign(bias, bias + n);
  });
}

riffle_status riffle_options_set_grammar(riffle_options* options, const riffle_grammar* grammar) {
  return on_options(options, [&] {
    options->answer.grammar = grammar ? std::make_shared<const riffle_grammar>(*grammar) : nullptr;
  });
}

const riffle_info* riffle_setting_at(size_t index) {
  const riffle_info* facts = nullptr;
  guarded(nullptr, 0, [&] {
    if (index < setting_facts().size()) facts = &setting_facts()[index];
  });
  return facts;
}

bool riffle_read_size(const char* text, bool bytes, uint64_t* size) {
  const auto n = text ? size_of(text, bytes) : std::nullopt;
  if (n && size) *size = *n;
  return n.has_value();
}

const char* riffle_nearest_word(const char* typed, const char* const* words, size_t n_words) {
  const char* best = nullptr;
  guarded(nullptr, 0, [&] {
    require(typed && (words || !n_words), "typed");
    NearestWord nearest(typed);
    for (size_t i = 0; i < n_words; ++i)
      if (words[i] && nearest.offer(words[i])) best = words[i];
  });
  return best;
}

}  // extern "C"
