#include "cli/batch/fields.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/batch/answer_format.h"
#include "cli/batch/messages.h"
#include "cli/settings.h"

namespace riffle::cli {
namespace {

constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();

// Facts collected while a body is read, and checked at its end.
struct Body {
  BatchRequest& request;
  bool prompt = false, messages = false, limited = false, seeded = false, penalised = false;
  bool effort = false;      // reasoning_effort is given
  int switched = 0;         // fields that switch reasoning on or off
  bool everything = false;  // vLLM's repetition penalty counts all tokens
  std::optional<size_t> best_of{};
  std::optional<bool> counted_logprobs{};  // true: logprobs is a number; false: it is true or false
  std::optional<int32_t> top_logprobs{};
  std::optional<bool> generation_prompt{}, continued{}, special_tokens{};  // vLLM's
};

// field: with its path, such as "body.seed".
using Read = void (*)(const Fields& f, const std::string& field, const JsonIn& value, Body& body);
struct BodyField : FieldUse {
  Read read = nullptr;  // HONOURED
};

// ---- readers, one for each field that is honoured

std::vector<int32_t> parse_tokens(const Fields& f, const std::string& field, const JsonIn& list) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < list.size(); ++i)
    tokens.push_back(
        f.integer<int32_t>(field + "[" + std::to_string(i) + "]", list[i], 0, kIntMax));
  return tokens;
}

// Reads a text or a list of at most 16 texts, none of them empty.
void add_texts(const Fields& f, const std::string& field, const JsonIn& value,
               std::vector<std::string>& texts) {
  if (!value.is_array()) {
    texts.push_back(f.plain_text(field, value));
  } else {
    if (value.size() > 16)
      f.fail("bad_request", "field " + field + " has more than 16 strings, expected at most 16");
    for (const JsonIn& s : value) texts.push_back(f.plain_text(field, s));
  }
  if (std::find(texts.begin(), texts.end(), "") != texts.end())
    f.fail("bad_request", "field " + field + " holds an empty string, expected text");
}

// Reads a text, a list of texts, a list of tokens, or a list of lists of tokens.
void read_prompt(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  std::vector<BatchPrompt>& prompts = body.request.prompts;
  const auto one = [&](const std::string& at, const JsonIn& prompt) {
    if (prompt.empty() || prompt == JsonIn(""))
      f.fail("empty_prompt", "field " + at + " is empty, expected text or tokens");
    prompts.push_back(prompt.is_string() ? BatchPrompt{f.text(at, prompt), {}}
                                         : BatchPrompt{"", parse_tokens(f, at, prompt)});
  };
  body.prompt = true;
  const bool list = value.is_array() && !value.empty() && !value[0].is_number();
  if (!value.is_string() && !value.is_array())
    f.wrong(field, value, "a string, a list of strings, a list of tokens or a list of these");
  if (!list) return one(field, value);
  if (value.size() > kMaxPrompts)
    f.fail("bad_request", text_of("field %s has %zu prompts, expected %zu at most", field.c_str(),
                                  value.size(), kMaxPrompts));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    if (value[i].type() != value[0].type() || !(value[i].is_string() || value[i].is_array()))
      f.wrong(at, value[i], value[0].is_array() ? "a list of tokens" : "a string");
    one(at, value[i]);
  }
}

void read_messages(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  body.messages = true;
  body.request.messages = parse_messages(f, field, value);
}

// Accepts any name: the record names the model that answers.
void read_model(const Fields& f, const std::string& field, const JsonIn& value, Body&) {
  if (f.text(field, value).size() > kMaxNameBytes)
    f.fail("bad_request",
           text_of("field %s is longer than %zu bytes", field.c_str(), kMaxNameBytes));
}

void read_max_tokens(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  if (std::exchange(body.limited, true))
    f.fail("bad_request",
           "fields body.max_tokens and body.max_completion_tokens are both given, expected one");
  body.request.answer.set("max-tokens", f.integer<int32_t>(field, value, 1, kIntMax));
}

// Needed because JsonIn's == treats 2^64 - 1 as equal to -1.
bool is_minus_one(const JsonIn& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == -1;
}

// Returns the sampler setting that has this name in lines.
const SettingRow& sampler_setting(std::string member) {
  std::replace(member.begin(), member.end(), '_', '-');
  return setting(member == "temperature" ? "temp" : member);
}

void set_sampling(const Fields& f, const std::string& field, const JsonIn& value, Body& body,
                  const std::string& member) {
  f.take(field, value, sampler_setting(member), body.request.answer);
}
// Reads the sampler setting that has the field's name.
void read_sampling(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  set_sampling(f, field, value, body, field.substr(field.rfind('.') + 1));
}
// In llama.cpp -1 means a random seed. Here it counts as no seed.
void read_seed(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  if (is_minus_one(value)) return;
  body.request.answer.set(
      "seed", f.integer<uint64_t>(field, value, 0, std::numeric_limits<uint64_t>::max()));
  body.seeded = true;
}

void read_n(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  body.request.n = f.integer<size_t>(field, value, 1, kMaxChoices);
}

void read_best_of(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  body.best_of = f.integer<size_t>(field, value, 1, kMaxChoices);
}

// Reads llama.cpp's penalty, which counts the last repeat_last_n tokens.
void read_repeat_penalty(const Fields& f, const std::string& field, const JsonIn& value,
                         Body& body) {
  if (std::exchange(body.penalised, true))
    f.fail("bad_request",
           "fields body.repeat_penalty and body.repetition_penalty are both given, expected one");
  set_sampling(f, field, value, body, "repeat_penalty");
}
// Reads vLLM's penalty, which counts all tokens.
void read_repetition_penalty(const Fields& f, const std::string& field, const JsonIn& value,
                             Body& body) {
  read_repeat_penalty(f, field, value, body);
  body.everything = true;
}

void read_dry_breakers(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  if (!value.is_array()) f.wrong(field, value, "a list of strings");
  std::vector<std::string> breakers;
  add_texts(f, field, value, breakers);
  body.request.answer.set_breakers(breakers);
}

double bias_of(const Fields& f, const std::string& field, const JsonIn& value) {
  return f.real(field, value, -RIFFLE_MAX_LOGIT_BIAS, RIFFLE_MAX_LOGIT_BIAS);
}
// Reads {"15043": -100}, or llama.cpp's [[15043, -100], [11, false]]: tokens and the numbers that
// are added to their logits. false: the token is never drawn.
void read_logit_bias(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  const std::string expected = "an object such as {\"15043\": -1}, or a list such as [[15043, -1]]";
  if (!value.is_object() && !value.is_array()) f.wrong(field, value, expected);
  std::vector<riffle_logit_bias> all;
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = field + "[" + std::to_string(i) + "]";
      const JsonIn& pair = value[i];
      if (!pair.is_array() || pair.size() != 2)
        f.wrong(at, pair, "a token and its bias, such as [15043, -1]");
      const auto token = f.integer<int32_t>(at + "[0]", pair[0], 0, kIntMax);
      const bool never = pair[1] == JsonIn(false);
      const double bias =
          never ? -std::numeric_limits<double>::infinity() : bias_of(f, at + "[1]", pair[1]);
      all.push_back({token, static_cast<float>(bias)});
    }
  } else {
    for (const auto& [key, bias] : value.items()) {
      int32_t token = 0;
      const char* const end = key.data() + key.size();
      const auto [stop, error] = std::from_chars(key.data(), end, token);
      if (error != std::errc() || stop != end || token < 0)
        f.fail("bad_request", "field " + field + ": found " + shown(key) +
                                  ", expected a token's number, such as 15043");
      all.push_back({token, static_cast<float>(bias_of(f, field + "." + key, bias))});
    }
  }
  body.request.answer.set_logit_bias(all);
}

// Reads true or false with messages, and with a prompt the number of most probable tokens to list
// for each token.
void read_logprobs(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  Options& answer = body.request.answer;
  body.counted_logprobs = !value.is_boolean();
  if (value.is_boolean()) {
    answer.set("logprobs", f.truth(field, value));
    return;
  }
  answer.set("logprobs", true);
  set_sampling(f, field, value, body, "top_logprobs");
}
void read_top_logprobs(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  Options asked;
  f.take(field, value, setting("top-logprobs"), asked);
  body.top_logprobs = static_cast<int32_t>(asked.count("top-logprobs"));
}

void read_stop(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  std::vector<std::string> stop;
  add_texts(f, field, value, stop);
  body.request.answer.set_stop(stop);
}

void read_ignore_eos(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  body.request.answer.set("ignore-eos", f.truth(field, value));
}

// A variable may be set in one place only, and "none" excludes enable_thinking.
void read_template_variable(const Fields& f, const std::string& field, const std::string& name,
                            const JsonIn& value, Body& body) {
  if (value.is_null()) return;
  const bool effort = name == "reasoning_effort";
  if (effort && std::exchange(body.effort, true))
    f.fail("bad_request",
           "fields body.reasoning_effort and body.chat_template_kwargs.reasoning_effort are both "
           "given, expected one");
  body.switched += !effort || value == JsonIn("none");
  if (body.switched > 1)
    f.fail(
        "bad_request",
        "found reasoning_effort \"none\" and chat_template_kwargs.enable_thinking, expected one of "
        "them");
  const std::string expected = set_template_variable(name, value, &body.request.thinking);
  if (!expected.empty()) f.wrong(field, value, expected);
  const bool level = effort && value != JsonIn("none");
  (level ? body.request.asks_effort : body.request.asks_thinking) = true;
  // A level turns reasoning on, as --think=LEVEL does. It overrides --no-think, but not the line's
  // own enable_thinking.
  std::string& enabled = body.request.thinking.enabled;
  if (effort && body.switched == 0 && enabled == "off") enabled = "on";
}
void read_effort(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  read_template_variable(f, field, "reasoning_effort", value, body);
}
// Reads {"enable_thinking": true}, the form of other servers.
void read_template_kwargs(const Fields& f, const std::string& field, const JsonIn& value,
                          Body& body) {
  if (!value.is_object()) f.wrong(field, value, "an object");
  for (const auto& [key, one] : value.items()) {
    if (!is_template_variable(key))
      f.fail("bad_request", "field " + field + "." + shown(key) + " is not supported");
    read_template_variable(f, field + "." + key, key, one, body);
  }
}

void read_generation_prompt(const Fields& f, const std::string& field, const JsonIn& value,
                            Body& body) {
  body.generation_prompt = f.truth(field, value);
}
void read_continued(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  body.continued = f.truth(field, value);
}
void read_special_tokens(const Fields& f, const std::string& field, const JsonIn& value,
                         Body& body) {
  body.special_tokens = f.truth(field, value);
}

void read_format(const Fields& f, const std::string& field, const JsonIn& value, Body& body) {
  read_answer_format(f, field, value, body.request);
}

// ---- the table. riffle-batch(1) is the table for users. OpenAI's fields come first, then those of
// vLLM, then those of llama.cpp. To support a field, give it HONOURED and a reader in place of
// NO_OP.
constexpr BodyField kFields[] = {
    {{"messages", Use::HONOURED}, read_messages},
    {{"prompt", Use::HONOURED}, read_prompt},
    {{"model", Use::HONOURED}, read_model},
    {{"max_tokens", Use::HONOURED}, read_max_tokens},
    {{"max_completion_tokens", Use::HONOURED}, read_max_tokens},
    {{"temperature", Use::HONOURED}, read_sampling},
    {{"top_p", Use::HONOURED}, read_sampling},
    {{"seed", Use::HONOURED}, read_seed},
    {{"stop", Use::HONOURED}, read_stop},
    {{"response_format", Use::HONOURED}, read_format},

    {{"n", Use::HONOURED}, read_n},
    {{"logprobs", Use::HONOURED}, read_logprobs},
    {{"top_logprobs", Use::HONOURED}, read_top_logprobs},
    {{"logit_bias", Use::HONOURED}, read_logit_bias},
    {{"frequency_penalty", Use::HONOURED}, read_sampling},
    {{"presence_penalty", Use::HONOURED}, read_sampling},
    {{"reasoning_effort", Use::HONOURED}, read_effort},

    {{"best_of", Use::HONOURED}, read_best_of},
    {{"stream", Use::NO_OP, "[false]"}},
    {{"echo", Use::NO_OP, "[false]"}},
    {{"suffix", Use::NO_OP, R"([""])"}},
    {{"modalities", Use::NO_OP, R"([["text"]])"}},
    {{"tools", Use::NO_OP, "[[]]"}},
    {{"tool_choice", Use::NO_OP, R"(["none","auto"])"}},
    {{"parallel_tool_calls", Use::NO_OP, "[true,false]"}},
    {{"functions", Use::NO_OP, "[[]]"}},
    {{"function_call", Use::NO_OP, R"(["none","auto"])"}},
    {{"verbosity", Use::NO_OP, R"(["medium"])"}},

    {{"user", Use::IGNORED}},
    {{"metadata", Use::IGNORED}},
    {{"store", Use::IGNORED}},
    {{"service_tier", Use::IGNORED}},
    {{"stream_options", Use::IGNORED}},
    {{"safety_identifier", Use::IGNORED}},
    {{"prompt_cache_key", Use::IGNORED}},
    {{"prompt_cache_options", Use::IGNORED}},
    {{"prompt_cache_retention", Use::IGNORED}},
    {{"prediction", Use::IGNORED}},  // a guess that makes the same answer come faster

    {{"audio", Use::REFUSED}},
    {{"web_search_options", Use::REFUSED}},
    {{"moderation", Use::REFUSED}},

    // vLLM
    {{"top_k", Use::HONOURED}, read_sampling},
    {{"min_p", Use::HONOURED}, read_sampling},
    {{"repetition_penalty", Use::HONOURED}, read_repetition_penalty},
    {{"ignore_eos", Use::HONOURED}, read_ignore_eos},
    {{"chat_template_kwargs", Use::HONOURED}, read_template_kwargs},
    {{"add_generation_prompt", Use::HONOURED}, read_generation_prompt},
    {{"continue_final_message", Use::HONOURED}, read_continued},
    {{"add_special_tokens", Use::HONOURED}, read_special_tokens},
    {{"guided_choice", Use::HONOURED}, read_format},
    {{"guided_grammar", Use::HONOURED}, read_format},
    {{"guided_json", Use::HONOURED}, read_format},
    {{"guided_regex", Use::HONOURED}, read_format},
    {{"structured_outputs", Use::HONOURED}, read_format},

    {{"length_penalty", Use::NO_OP, "[1]"}},
    {{"min_tokens", Use::NO_OP, "[0]"}},
    {{"use_beam_search", Use::NO_OP, "[false]"}},
    {{"stop_token_ids", Use::NO_OP, "[[]]"}},
    {{"bad_words", Use::NO_OP, "[[]]"}},
    {{"documents", Use::NO_OP, "[[]]"}},
    {{"include_stop_str_in_output", Use::NO_OP, "[false]"}},
    {{"include_reasoning", Use::NO_OP, "[true]"}},
    {{"skip_special_tokens", Use::NO_OP, "[true]"}},
    {{"spaces_between_special_tokens", Use::NO_OP, "[true,false]"}},  // they are not printed
    {{"return_token_ids", Use::NO_OP, "[false]"}},
    {{"return_tokens_as_token_ids", Use::NO_OP, "[true,false]"}},  // a form of logprobs

    {{"priority", Use::IGNORED}},
    {{"request_id", Use::IGNORED}},
    {{"cache_salt", Use::IGNORED}},

    {{"allowed_token_ids", Use::REFUSED}},
    {{"chat_template", Use::REFUSED}},
    {{"structural_tag", Use::REFUSED}},
    {{"extra_body", Use::REFUSED, nullptr,
      "its members belong in the body itself, where the openai package writes them"}},
    {{"logits_processors", Use::REFUSED}},
    {{"prompt_embeds", Use::REFUSED}},
    {{"prompt_logprobs", Use::REFUSED}},
    {{"thinking_token_budget", Use::REFUSED}},
    {{"truncate_prompt_tokens", Use::REFUSED}},

    // llama.cpp
    {{"repeat_penalty", Use::HONOURED}, read_repeat_penalty},
    {{"repeat_last_n", Use::HONOURED}, read_sampling},
    {{"xtc_probability", Use::HONOURED}, read_sampling},
    {{"xtc_threshold", Use::HONOURED}, read_sampling},
    {{"dry_multiplier", Use::HONOURED}, read_sampling},
    {{"dry_base", Use::HONOURED}, read_sampling},
    {{"dry_allowed_length", Use::HONOURED}, read_sampling},
    {{"dry_penalty_last_n", Use::HONOURED}, read_sampling},
    {{"dry_sequence_breakers", Use::HONOURED}, read_dry_breakers},
    {{"grammar", Use::HONOURED}, read_format},
    {{"json_schema", Use::HONOURED}, read_format},

    {{"cache_prompt", Use::IGNORED}},
    {{"id_slot", Use::IGNORED}},
    {{"n_predict", Use::REFUSED, nullptr, "use max_tokens"}},
    {{"typical_p", Use::NO_OP, "[1]"}},
    {{"mirostat", Use::NO_OP, "[0]"}},
    {{"n_probs", Use::NO_OP, "[0]"}},
};

// Checks vLLM's fields about the conversation's end. riffle always continues a last message of an
// assistant, and answers any other.
void check_end(const Fields& f, const Body& body) {
  if (!body.messages) return;
  const bool open = body.request.messages.back().role == "assistant";
  const auto differs = [&](const char* name, const std::optional<bool>& value, bool expected) {
    if (!value || *value == expected) return;
    f.fail("bad_request", text_of("field body.%s is %s, but the last message is %s", name,
                                  *value ? "true" : "false",
                                  open ? "an assistant's, which riffle continues"
                                       : "not an assistant's, and riffle answers it"));
  };
  differs("continue_final_message", body.continued, open);
  differs("add_generation_prompt", body.generation_prompt, !open);
}

// OpenAI uses true and a separate number (top_logprobs) for conversations, and one number for
// prompts.
void check_logprobs(const Fields& f, Body& body) {
  Options& answer = body.request.answer;
  const bool logprobs = answer.on("logprobs");
  if (body.counted_logprobs && *body.counted_logprobs == body.messages && logprobs)
    f.fail("bad_request", body.messages
                              ? "field body.logprobs is a number, expected true or false with "
                                "messages (body.top_logprobs is the number)"
                              : "field body.logprobs is true, expected a number with a prompt");
  if (!body.top_logprobs) return;
  if (*body.top_logprobs > 0 && !(body.messages && logprobs))
    f.fail("bad_request",
           "field body.top_logprobs is not 0, expected 0, or messages with body.logprobs true");
  if (body.messages) answer.set("top-logprobs", *body.top_logprobs);
}

}  // namespace

bool parse_body(const Fields& f, const JsonIn& object, BatchRequest& r) {
  Body body{r};
  for (const auto& [key, value] : object.items()) {
    const BodyField* const field = field_named(kFields, key);
    if (!f.is_read(field, "body.", "body.", key, value)) continue;
    if (!value.is_null()) field->read(f, "body." + key, value, body);
  }
  if (body.prompt && body.messages)
    f.fail("bad_request", "fields body.prompt and body.messages are both given, expected one");
  if (!body.prompt && !body.messages)
    f.fail("bad_request", "fields body.prompt and body.messages are missing, expected one of them");
  r.chat = body.messages;
  if (body.best_of && *body.best_of != r.n)
    f.fail("bad_request",
           text_of("field body.best_of is %zu, expected %zu as in body.n; riffle returns every "
                   "answer that it makes",
                   *body.best_of, r.n));
  check_logprobs(f, body);
  if (r.n * std::max<size_t>(r.prompts.size(), 1) > kMaxPrompts)
    f.fail("bad_request",
           text_of("field body.n is %zu for each of %zu prompts, expected %zu answers "
                   "at most",
                   r.n, r.prompts.size(), kMaxPrompts));
  if (body.everything) r.answer.set("repeat-last-n", -1);
  check_end(f, body);
  if (body.special_tokens && *body.special_tokens == r.chat)
    f.fail("bad_request", std::string("field body.add_special_tokens is ") +
                              (r.chat ? "true" : "false") + ", which is not supported with " +
                              (r.chat ? "messages" : "a prompt"));
  return body.seeded;
}

}  // namespace riffle::cli
