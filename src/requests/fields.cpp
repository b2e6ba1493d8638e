#include "requests/fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "requests/answer_format.h"
#include "requests/messages.h"
#include "requests/tool_fields.h"

namespace riffle::requests {
namespace {

constexpr int32_t kIntMax = std::numeric_limits<int32_t>::max();

// Facts collected while a body is read, and checked at its end.
struct Body {
  Request& request;
  bool prompt = false, messages = false, seeded = false, penalised = false;
  bool effort = false;      // reasoning_effort is given
  int switched = 0;         // fields that switch reasoning on or off
  bool everything = false;  // vLLM's repetition penalty counts all tokens
  std::optional<size_t> best_of{};
  std::optional<bool> counted_logprobs{};  // true: logprobs is a number; false: it is true or false
  std::optional<int32_t> top_logprobs{};
  std::optional<bool> generation_prompt{}, continued{}, special_tokens{};  // vLLM's
};

// field: with its path, such as "body.seed".
using Read = void (*)(const Fields& f, const std::string& field, const Json& value, Body& body);
struct BodyField : FieldUse {
  Read read = nullptr;  // HONOURED
};

// ---- readers, one for each field that is honoured

std::vector<int32_t> parse_tokens(const Fields& f, const std::string& field, const Json& list) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < list.size(); ++i)
    tokens.push_back(
        f.integer<int32_t>(field + "[" + std::to_string(i) + "]", list[i], 0, kIntMax));
  return tokens;
}

// Reads a text or a list of at most 16 texts, none of them empty.
void add_texts(const Fields& f, const std::string& field, const Json& value,
               std::vector<std::string>& texts) {
  if (!value.is_array()) {
    texts.push_back(f.plain_text(field, value));
  } else {
    if (value.size() > 16)
      f.fail(kWrongValue, field,
             "field " + field + " has more than 16 strings, expected at most 16");
    for (const Json& s : value.elements()) texts.push_back(f.plain_text(field, s));
  }
  if (std::find(texts.begin(), texts.end(), "") != texts.end())
    f.fail(kWrongValue, field, "field " + field + " holds an empty string, expected text");
}

// Reads a text, a list of texts, a list of tokens, or a list of lists of tokens.
void read_prompt(const Fields& f, const std::string& field, const Json& value, Body& body) {
  std::vector<Prompt>& prompts = body.request.prompts;
  const auto one = [&](const std::string& at, const Json& prompt) {
    if (prompt.is_string() ? prompt.string().empty() : prompt.empty())
      f.fail(kEmptyPrompt, at, "field " + at + " is empty, expected text or tokens");
    prompts.push_back(prompt.is_string() ? Prompt{f.text(at, prompt), {}}
                                         : Prompt{"", parse_tokens(f, at, prompt)});
  };
  body.prompt = true;
  const bool list = value.is_array() && !value.empty() && !value[0].is_number();
  if (!value.is_string() && !value.is_array())
    f.wrong(field, value, "a string, a list of strings, a list of tokens or a list of these");
  if (!list) return one(field, value);
  if (value.size() > kMaxPrompts)
    f.fail(kWrongValue, field,
           format("field %s has %zu prompts, expected %zu at most", field.c_str(), value.size(),
                  kMaxPrompts));
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    const bool fits = value[0].is_array() ? value[i].is_array() : value[i].is_string();
    if (!fits) f.wrong(at, value[i], value[0].is_array() ? "a list of tokens" : "a string");
    one(at, value[i]);
  }
}

void read_messages(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.messages = true;
  body.request.messages = parse_messages(f, field, value);
}

// Accepts any name: the caller decides whether it is the model that answers.
void read_model(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.request.model = f.text(field, value);
  if (body.request.model.size() > kMaxNameBytes)
    f.fail(kWrongValue, field,
           format("field %s is longer than %zu bytes, expected %zu at most", field.c_str(),
                  kMaxNameBytes, kMaxNameBytes));
}

void read_max_tokens(const Fields& f, const std::string& field, const Json& value, Body& body) {
  GenerateOptions& answer = body.request.answer;
  if (answer.limit_field)
    f.fail(kWrongValue, field,
           "fields body.max_tokens and body.max_completion_tokens are both given, expected one");
  answer.max_tokens = f.integer<int32_t>(field, value, 1, kIntMax);
  answer.limit_field = field.ends_with(".max_tokens") ? "max_tokens" : "max_completion_tokens";
}

void set_sampling(const Fields& f, const std::string& field, const Json& value, Body& body,
                  const char* setting) {
  f.take(field, value, setting, &body.request.answer);
}
// Reads the sampler setting that has the field's name.
void read_sampling(const Fields& f, const std::string& field, const Json& value, Body& body) {
  const std::string member = field.substr(field.rfind('.') + 1);
  set_sampling(f, field, value, body, member == "temperature" ? "temp" : member.c_str());
}
// In llama.cpp -1 means a random seed. Here it counts as no seed.
void read_seed(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (value.is_integer() && !value.is_unsigned() && value.integer() == -1) return;
  body.request.answer.sampling.seed =
      f.integer<uint64_t>(field, value, 0, std::numeric_limits<uint64_t>::max());
  body.seeded = true;
}

void read_n(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.request.n = f.integer<size_t>(field, value, 1, kMaxChoices);
}

void read_best_of(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.best_of = f.integer<size_t>(field, value, 1, kMaxChoices);
}

// Reads llama.cpp's penalty, which counts the last repeat_last_n tokens.
void read_repeat_penalty(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (std::exchange(body.penalised, true))
    f.fail(kWrongValue, field,
           "fields body.repeat_penalty and body.repetition_penalty are both given, expected one");
  set_sampling(f, field, value, body, "repeat_penalty");
}
// Reads vLLM's penalty, which counts all tokens.
void read_repetition_penalty(const Fields& f, const std::string& field, const Json& value,
                             Body& body) {
  read_repeat_penalty(f, field, value, body);
  body.everything = true;
}

void read_dry_breakers(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (!value.is_array()) f.wrong(field, value, "a list of strings");
  std::vector<std::string> breakers;
  add_texts(f, field, value, breakers);
  body.request.answer.sampling.dry_sequence_breakers = std::move(breakers);
}

double bias_of(const Fields& f, const std::string& field, const Json& value) {
  return f.real(field, value, -RIFFLE_MAX_LOGIT_BIAS, RIFFLE_MAX_LOGIT_BIAS);
}
// Reads {"15043": -100}, or llama.cpp's [[15043, -100], [11, false]]: tokens and the numbers that
// are added to their logits. false: the token is never drawn.
void read_logit_bias(const Fields& f, const std::string& field, const Json& value, Body& body) {
  const std::string expected = "an object such as {\"15043\": -1}, or a list such as [[15043, -1]]";
  if (!value.is_object() && !value.is_array()) f.wrong(field, value, expected);
  std::vector<riffle_logit_bias> all;
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string at = field + "[" + std::to_string(i) + "]";
      const Json& pair = value[i];
      if (!pair.is_array() || pair.size() != 2)
        f.wrong(at, pair, "a token and its bias, such as [15043, -1]");
      const auto token = f.integer<int32_t>(at + "[0]", pair[0], 0, kIntMax);
      const bool never = pair[1].is_boolean() && !pair[1].boolean();
      const double bias =
          never ? -std::numeric_limits<double>::infinity() : bias_of(f, at + "[1]", pair[1]);
      all.push_back({token, static_cast<float>(bias)});
    }
  } else {
    for (const Json::Member* const m : members_by_key(value)) {
      const auto& [key, bias] = *m;
      int32_t token = 0;
      const char* const end = key.data() + key.size();
      const auto [stop, error] = std::from_chars(key.data(), end, token);
      if (error != std::errc() || stop != end || token < 0)
        f.fail(kWrongValue, field,
               "field " + field + ": found " + shown(key) +
                   ", expected a token's number, such as 15043");
      all.push_back({token, static_cast<float>(bias_of(f, field + "." + key, bias))});
    }
  }
  body.request.answer.sampling.logit_bias = std::move(all);
}

// Reads true or false with messages, and with a prompt the number of most probable tokens to list
// for each token.
void read_logprobs(const Fields& f, const std::string& field, const Json& value, Body& body) {
  bool& logprobs = body.request.answer.sampling.logprobs;
  body.counted_logprobs = !value.is_boolean();
  if (value.is_boolean()) {
    logprobs = value.boolean();
    return;
  }
  logprobs = true;
  set_sampling(f, field, value, body, "top-logprobs");
}
void read_top_logprobs(const Fields& f, const std::string& field, const Json& value, Body& body) {
  GenerateOptions asked;
  f.take(field, value, "top-logprobs", &asked);
  body.top_logprobs = asked.sampling.top_logprobs;
}

void read_stop(const Fields& f, const std::string& field, const Json& value, Body& body) {
  std::vector<std::string> stop;
  add_texts(f, field, value, stop);
  body.request.answer.stop = std::move(stop);
}

void read_ignore_eos(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.request.answer.ignore_eos = f.truth(field, value);
}

// A variable may be set in one place only, and "none" excludes enable_thinking.
void read_template_variable(const Fields& f, const std::string& field, const std::string& name,
                            const Json& value, Body& body) {
  if (value.is_null()) return;
  const bool effort = name == "reasoning_effort";
  if (effort && std::exchange(body.effort, true))
    f.fail(kWrongValue, field,
           "fields body.reasoning_effort and body.chat_template_kwargs.reasoning_effort are both "
           "given, expected one");
  const bool off = value.equals("none");
  body.switched += !effort || off;
  if (body.switched > 1)
    f.fail(
        kWrongValue, field,
        "found reasoning_effort \"none\" and chat_template_kwargs.enable_thinking, expected one of "
        "them");
  ConversationOptions& options = body.request.conversation;
  if (!effort) {
    options.thinking = f.truth(field, value) ? ThinkingRule::ON : ThinkingRule::OFF;
  } else if (off) {
    options.thinking = ThinkingRule::OFF;
    options.reasoning_effort = "";
  } else {
    if (!value.equals("low") && !value.equals("medium") && !value.equals("high"))
      f.wrong(field, value, "none, low, medium or high");
    options.reasoning_effort = value.string();
  }
  const bool level = effort && !off;
  (level ? body.request.asks_effort : body.request.asks_thinking) = true;
  // A level turns reasoning on, as --think=LEVEL does. It overrides --no-think, but not the body's
  // own enable_thinking.
  if (effort && body.switched == 0 && options.thinking == ThinkingRule::OFF)
    options.thinking = ThinkingRule::ON;
}
void read_effort(const Fields& f, const std::string& field, const Json& value, Body& body) {
  read_template_variable(f, field, "reasoning_effort", value, body);
}
// Reads {"enable_thinking": true}, the form of other servers.
void read_template_kwargs(const Fields& f, const std::string& field, const Json& value,
                          Body& body) {
  if (!value.is_object()) f.wrong(field, value, "an object");
  for (const Json::Member* const m : members_by_key(value)) {
    const auto& [key, one] = *m;
    if (key != "enable_thinking" && key != "reasoning_effort")
      f.fail(kUnsupported, field,
             "field " + field + "." + shown(key) +
                 " is not supported, expected enable_thinking or "
                 "reasoning_effort");
    read_template_variable(f, field + "." + key, key, one, body);
  }
}

void read_generation_prompt(const Fields& f, const std::string& field, const Json& value,
                            Body& body) {
  body.generation_prompt = f.truth(field, value);
}
void read_continued(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.continued = f.truth(field, value);
}
void read_special_tokens(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.special_tokens = f.truth(field, value);
}

// Prompts do not go through a template, and so have no tools. Requires: prompt has been read.
void check_no_prompt(const Fields& f, const std::string& field, const Body& body) {
  if (body.prompt)
    f.fail(kUnsupportedValue, field,
           "field " + field + " is given, which is not supported with a prompt");
}
void read_tools(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (!value.is_array() || !value.empty()) check_no_prompt(f, field, body);
  read_tools(f, field, value, &body.request.tools);
}
void read_tool_choice(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (!value.equals("none") && !value.equals("auto")) check_no_prompt(f, field, body);
  read_tool_choice(f, field, value, &body.request.tools);
}
void read_parallel(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.request.tools.parallel = f.truth(field, value);
}

void read_stream(const Fields& f, const std::string& field, const Json& value, Body& body) {
  body.request.stream = f.truth(field, value);
}
constexpr FieldUse kStreamOptions[] = {{.name = "include_usage", .use = Use::HONOURED},
                                       {"include_obfuscation", Use::IGNORED}};
void read_stream_options(const Fields& f, const std::string& field, const Json& value, Body& body) {
  if (!value.is_object()) f.wrong(field, value, "an object");
  for (const auto& [key, one] : value.members()) {
    if (!f.is_read(field_named(kStreamOptions, key), field + ".", field + ".", key, one)) continue;
    if (!one.is_null()) body.request.include_usage = f.truth(field + "." + key, one);
  }
}

void read_format(const Fields& f, const std::string& field, const Json& value, Body& body) {
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
    {{"tools", Use::HONOURED}, read_tools},
    {{"tool_choice", Use::HONOURED}, read_tool_choice},
    {{"parallel_tool_calls", Use::HONOURED}, read_parallel},

    {{"best_of", Use::HONOURED}, read_best_of},
    {{"stream", Use::NO_OP, "[false]"}},
    {{"echo", Use::NO_OP, "[false]"}},
    {{"suffix", Use::NO_OP, R"([""])"}},
    {{"modalities", Use::NO_OP, R"([["text"]])"}},
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

// Fields that requests of a server have, and lines of a batch do not.
constexpr BodyField kStreamFields[] = {
    {{.name = "stream", .use = Use::HONOURED}, read_stream},
    {{.name = "stream_options", .use = Use::HONOURED}, read_stream_options},
};

// Checks vLLM's fields about the conversation's end. riffle always continues a last message of an
// assistant, and answers any other.
void check_end(const Fields& f, const Body& body) {
  if (!body.messages) return;
  const bool open = body.request.messages.back().role == "assistant";
  const auto differs = [&](const char* name, const std::optional<bool>& value, bool expected) {
    if (!value || *value == expected) return;
    f.fail(
        kWrongValue, format("body.%s", name),
        format("field body.%s is %s, but the last message is %s", name, *value ? "true" : "false",
               open ? "an assistant's, which riffle continues"
                    : "not an assistant's, and riffle answers it"));
  };
  differs("continue_final_message", body.continued, open);
  differs("add_generation_prompt", body.generation_prompt, !open);
}

// OpenAI uses true and a separate number (top_logprobs) for conversations, and one number for
// prompts.
void check_logprobs(const Fields& f, Body& body) {
  Sampling& sampling = body.request.answer.sampling;
  const bool logprobs = sampling.logprobs;
  if (body.counted_logprobs && *body.counted_logprobs == body.messages && logprobs)
    f.fail(kWrongValue, "body.logprobs",
           body.messages ? "field body.logprobs is a number, expected true or false with "
                           "messages (body.top_logprobs is the number)"
                         : "field body.logprobs is true, expected a number with a prompt");
  if (!body.top_logprobs) return;
  if (*body.top_logprobs > 0 && !(body.messages && logprobs))
    f.fail(kWrongValue, "body.top_logprobs",
           "field body.top_logprobs is not 0, expected 0, or messages with body.logprobs true");
  if (body.messages) sampling.top_logprobs = *body.top_logprobs;
}

}  // namespace

bool parse_body(const Fields& f, const Json& object, Request& r) {
  Body body{r};
  const bool line = r.kind == RIFFLE_REQUEST_BATCH_LINE;
  for (const Json::Member* const m : members_by_key(object)) {
    const auto& [key, value] = *m;
    const BodyField* field = line ? nullptr : field_named(kStreamFields, key);
    if (!field) field = field_named(kFields, key);
    if (!f.is_read(field, "body.", "body.", key, value)) continue;
    if (!value.is_null()) field->read(f, "body." + key, value, body);
  }
  if (body.prompt && body.messages)
    f.fail(kWrongValue, "body.prompt",
           "fields body.prompt and body.messages are both given, expected one");
  if (!body.prompt && !body.messages)
    f.fail(kMissing, r.kind == RIFFLE_REQUEST_COMPLETION ? "body.prompt" : "body.messages",
           "fields body.prompt and body.messages are missing, expected one of them");
  r.chat = body.messages;
  if (!line && r.chat != (r.kind == RIFFLE_REQUEST_CHAT))
    f.fail(kWrongValue, r.chat ? "body.messages" : "body.prompt",
           r.chat ? "field body.messages is given, expected body.prompt for a completion"
                  : "field body.prompt is given, expected body.messages for a chat completion");
  if (body.best_of && *body.best_of != r.n)
    f.fail(kWrongValue, "body.best_of",
           format("field body.best_of is %zu, expected %zu as in body.n; riffle returns every "
                  "answer that it makes",
                  *body.best_of, r.n));
  check_logprobs(f, body);
  if (r.n * std::max<size_t>(r.prompts.size(), 1) > kMaxPrompts)
    f.fail(kWrongValue, "body.n",
           format("field body.n is %zu for each of %zu prompts, expected %zu answers "
                  "at most",
                  r.n, r.prompts.size(), kMaxPrompts));
  if (body.everything) r.answer.sampling.repeat_last_n = -1;
  check_end(f, body);
  check_tools(f, r);
  if (body.special_tokens && *body.special_tokens == r.chat)
    f.fail(kUnsupportedValue, "body.add_special_tokens",
           std::string("field body.add_special_tokens is ") + (r.chat ? "true" : "false") +
               ", which is not supported with " + (r.chat ? "messages" : "a prompt"));
  if (r.include_usage && !r.stream)
    f.fail(kWrongValue, "body.stream_options",
           "field body.stream_options is given, expected it only with body.stream true");
  return body.seeded;
}

}  // namespace riffle::requests
