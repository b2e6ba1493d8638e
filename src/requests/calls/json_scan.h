// Finds the end of a JSON value while it is written, and reads objects that name a function and its
// arguments.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "requests/calls/call_parser.h"
#include "util/json.h"

namespace riffle::requests {

// Finds the end of one value. It does not check the value.
class JsonScan {
 public:
  // Takes text from the front of *text up to the value's end. Returns true at the end. A number, or
  // any other text, ends before a comma, a bracket or white space.
  bool put(std::string_view* text, std::string* taken);
  bool begun() const { return begun_; }
  bool in_string() const { return string_; }

 private:
  int depth_ = 0;
  bool begun_ = false, string_ = false, escape_ = false, bare_ = false;
};

// Reads {"name": "f", "arguments": {...}}. Some models call the arguments parameters, or give them
// as JSON's text. Other members are ignored.
class CallObject : public CallBody {
 public:
  using Known = std::function<bool(std::string_view name)>;
  // known: whether a call of this name is one; null: all are.
  explicit CallObject(Known known = nullptr) : known_(std::move(known)) {}
  Step step(std::string_view* text, bool over, CallSink* out) override;

 private:
  enum class At { OBJECT, FIRST, KEY, COLON, VALUE, COMMA } at_ = At::OBJECT;
  Step read(std::string_view* text, bool over, CallSink* out);
  Step value(std::string_view* text, bool over, CallSink* out);
  Step take_value(CallSink* out);
  Step begin(CallSink* out);
  Step close(CallSink* out);

  Known known_;
  JsonScan scan_;
  std::string key_, value_, name_, waiting_;  // waiting_: arguments that came before the name
  bool named_ = false, begun_ = false, has_arguments_ = false;
  // Text behind the arguments, which an object that is broken there adds to them. from_: the
  // beginning of this text in the present step; null: the arguments have not ended.
  std::string behind_;
  const char* from_ = nullptr;
};

// Calls whose arguments become JSON while they are read.
class ConvertedCalls : public CallBody {
 protected:
  // Begins a call, whose arguments stand in this bracket.
  void begin(std::string_view name, char bracket, CallSink* out);
  void put(std::string_view json, CallSink* out);
  // Passes on the bracket that begins an object or a list, from the front of *text.
  void open(std::string_view* text, CallSink* out);
  // Ends the call. BROKEN: its arguments are no JSON object.
  Step end(CallSink* out);

  std::string open_, json_;  // brackets that are open; the arguments so far
};

// Characters that a keyword of LFM2's calls cannot have.
inline constexpr std::string_view kNotInKeyword = "=,()[]{}\"'";

// Escapes a piece of a JSON string, which may begin or end inside a character.
std::string json_piece(std::string_view text);

// Reads a JSON value of a call. A key of an object may be given twice, since a schema that allows
// members of any name cannot forbid it. Throws JsonError.
void read_value(std::string_view json, Json* value);

// Returns "", or what is wrong with the text of arguments: it must be a JSON object whose own keys
// differ.
std::string arguments_error(std::string_view json);

}  // namespace riffle::requests
