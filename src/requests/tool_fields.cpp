#include "requests/tool_fields.h"

#include <set>

namespace riffle::requests {
namespace {

constexpr size_t kMostTools = 128, kMostCalls = 128;  // OpenAI's limit of tools
constexpr size_t kLongestName = 64;

constexpr FieldUse kToolFields[] = {{"type", Use::HONOURED}, {"function", Use::HONOURED}};
constexpr FieldUse kFunctionFields[] = {
    {"name", Use::HONOURED},
    {"description", Use::HONOURED},
    {"parameters", Use::HONOURED},
    {"strict", Use::HONOURED},
};
constexpr FieldUse kCallFields[] = {
    {"id", Use::HONOURED},
    {"type", Use::HONOURED},
    {"function", Use::HONOURED},
    {"index", Use::IGNORED},  // a streamed call has it
};
constexpr FieldUse kCalledFields[] = {{"name", Use::HONOURED}, {"arguments", Use::HONOURED}};

// Names of functions stand in the texts of all formats, so they hold nothing that a format uses.
std::string name_of(const Fields& f, const std::string& field, const Json& value) {
  std::string name = f.text(field, value);
  const bool plain = name.find_first_not_of(
                         "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_-.") == name.npos;
  if (name.empty() || name.size() > kLongestName || !plain)
    f.wrong(field, value, format("1 to %zu letters, digits, _ - and .", kLongestName));
  return name;
}

void check_type(const Fields& f, const std::string& at, const Json& object) {
  const Json* const type = object.find("type");
  if (!type) f.missing(at + ".type", "\"function\"");
  if (!type->equals("function")) f.wrong(at + ".type", *type, "\"function\"");
}

const Json& function_of(const Fields& f, const std::string& at, const Json& object) {
  const Json* const function = object.find("function");
  if (!function) f.missing(at + ".function");
  if (!function->is_object()) f.wrong(at + ".function", *function, "an object");
  return *function;
}

Tool parse_tool(const Fields& f, const std::string& at, const Json& object) {
  if (!object.is_object()) f.wrong(at, object, "an object");
  if (!object.find("function") && object.find("name"))
    f.missing(at + ".function", "an object that has the name, the description and the parameters");
  for (const Json::Member* const m : members_by_key(object))
    (void)f.is_read(field_named(kToolFields, m->key), at + ".", "tools.", m->key, m->value);
  check_type(f, at, object);
  const Json& function = function_of(f, at, object);
  const std::string within = at + ".function";
  Tool tool;
  for (const Json::Member* const m : members_by_key(function)) {
    const auto& [key, value] = *m;
    const std::string field = within + "." + key;
    if (!f.is_read(field_named(kFunctionFields, key), within + ".", "tools.function.", key, value))
      continue;
    if (key == "name") tool.name = name_of(f, field, value);
    else if (value.is_null()) continue;
    else if (key == "description") (void)f.plain_text(field, value);
    else if (key == "strict") (void)f.truth(field, value);
    else if (!value.is_object()) f.wrong(field, value, "a JSON Schema");
  }
  if (tool.name.empty()) f.missing(within + ".name");
  tool.definition = object;
  return tool;
}

}  // namespace

void read_tools(const Fields& f, const std::string& field, const Json& value, ToolUse* tools) {
  if (!value.is_array()) f.wrong(field, value, "a list of tools");
  tools->given = true;
  if (value.size() > kMostTools)
    f.fail(kWrongValue, field,
           format("field %s has %zu tools, expected %zu at most", field.c_str(), value.size(),
                  kMostTools));
  std::set<std::string> names;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    tools->tools.push_back(parse_tool(f, at, value[i]));
    if (!names.insert(tools->tools.back().name).second)
      f.fail(kWrongValue, at + ".function.name",
             "field " + at + ".function.name is " + shown(tools->tools.back().name) +
                 ", which an earlier tool has; expected different names");
  }
}

void read_tool_choice(const Fields& f, const std::string& field, const Json& value,
                      ToolUse* tools) {
  if (value.equals("none")) tools->choice = ToolUse::NONE;
  else if (value.equals("auto")) tools->choice = ToolUse::AUTO;
  else if (value.equals("required")) tools->choice = ToolUse::REQUIRED;
  else if (!value.is_object())
    f.wrong(field, value, "\"none\", \"auto\", \"required\" or an object that names a function");
  if (!value.is_object()) return;
  check_type(f, field, value);
  const Json& function = function_of(f, field, value);
  const Json* const name = function.find("name");
  if (!name) f.missing(field + ".function.name");
  tools->named = name_of(f, field + ".function.name", *name);
  tools->choice = ToolUse::NAMED;
}

void check_tools(const Fields& f, const Request& r) {
  const ToolUse& tools = r.tools;
  if (tools.must_call() && tools.tools.empty())
    f.fail(kMissing, "body.tools",
           std::string("field body.tools is ") + (tools.given ? "an empty list" : "missing") +
               ", expected tools with this body.tool_choice");
  if (tools.choice == ToolUse::NAMED && !tools.find(tools.named))
    f.fail(kWrongValue, "body.tool_choice",
           "field body.tool_choice.function.name is " + shown(tools.named) +
               ", expected the name of a tool");
  const auto& messages = r.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].calls.empty() || i + 1 < messages.size()) continue;
    f.fail(kWrongValue, format("body.messages[%zu].tool_calls", i),
           format("field body.messages[%zu].tool_calls is given in the last message, expected "
                  "messages of role tool behind it",
                  i));
  }
}

std::vector<ChatCall> parse_calls(const Fields& f, const std::string& field, const Json& list) {
  if (!list.is_array()) f.wrong(field, list, "a list of calls");
  if (list.size() > kMostCalls)
    f.fail(kWrongValue, field,
           format("field %s has %zu calls, expected %zu at most", field.c_str(), list.size(),
                  kMostCalls));
  std::vector<ChatCall> calls;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = field + "[" + std::to_string(i) + "]";
    const Json& object = list[i];
    if (!object.is_object()) f.wrong(at, object, "an object");
    for (const Json::Member* const m : members_by_key(object))
      (void)f.is_read(field_named(kCallFields, m->key), at + ".", "messages.tool_calls.", m->key,
                      m->value);
    ChatCall call;
    if (given(object, "type")) check_type(f, at, object);
    if (const Json* const id = given(object, "id")) call.id = f.plain_text(at + ".id", *id);
    const Json& function = function_of(f, at, object);
    const std::string within = at + ".function";
    for (const Json::Member* const m : members_by_key(function))
      (void)f.is_read(field_named(kCalledFields, m->key), within + ".",
                      "messages.tool_calls.function.", m->key, m->value);
    const Json* const name = function.find("name");
    if (!name) f.missing(within + ".name");
    call.name = name_of(f, within + ".name", *name);
    const Json* const arguments = given(function, "arguments");
    if (!arguments) f.missing(within + ".arguments");
    call.text = f.plain_text(within + ".arguments", *arguments);
    if (call.text.empty()) call.text = "{}";
    constexpr JsonLimits kLimits{.depth = kMaxNesting, .values = kMaxValues};
    try {
      call.arguments = parse_json(call.text, kLimits);
    } catch (const JsonError& e) {
      f.fail(kWrongValue, within + ".arguments",
             "field " + within + ".arguments: " + text_of(e, kLimits));
    }
    if (!call.arguments.is_object())
      f.wrong(within + ".arguments", *arguments, "the text of an object");
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace riffle::requests
