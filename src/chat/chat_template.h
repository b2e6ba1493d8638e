// Turns conversations into text and tokens, by evaluating the template in the model's file or by a
// format of the table that the user names.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_family.h"
#include "chat/template_interpreter.h"

namespace riffle {

class Tokenizer;

enum class Thinking { DEFAULT, ON, OFF };  // the template's enable_thinking

struct ChatOptions {
  Thinking thinking = Thinking::DEFAULT;
  // Today's date. A template with a default date ignores it, so that a conversation is the same
  // every day. Others that use the date fail without it.
  std::optional<TemplateDate> date;
  std::string reasoning_effort = {};  // the template's variable of this name; "": it is not set
  const std::vector<Json>* tools = nullptr;  // definitions in OpenAI's form; null: none
};

// Tags that a model writes around its reasoning; "": its template names none.
struct ReasoningMarks {
  std::string begin, end;
};

// Why a conversation with tools, or with calls of tools, is refused.
inline constexpr const char* kNoTools =
    "this model's chat template has no place for tools; use a model whose template has one, or "
    "leave tools out";
inline constexpr const char* kNoCalls =
    "this model's chat template does not print calls of tools; use a model whose template does, or "
    "leave the calls and their results out";

class ChatTemplate {
 public:
  // Parses a model's own template, in Jinja. Throws Error RIFFLE_UNSUPPORTED.
  explicit ChatTemplate(std::string_view jinja);
  explicit ChatTemplate(const ChatFamily& family) : family_(&family) {}

  // Throws RIFFLE_UNSUPPORTED, with the names that fit, if this is a named format and the
  // vocabulary lacks a token that it needs.
  void check_vocabulary(const Tokenizer& tokenizer) const;

  const char* name() const { return family_ ? family_->name : "own"; }
  bool knows_thinking() const { return jinja_ && jinja_->mentions("enable_thinking"); }
  // Tells whether the template prints an assistant's calls, and the results that follow them.
  bool knows_calls() const { return knows_calls_; }
  bool knows_tools() const { return jinja_ && jinja_->mentions("tools"); }
  // Returns the template's text; "": a named format.
  std::string_view text_of_template() const { return jinja_ ? std::string_view(jinja_text_) : ""; }
  bool knows_effort() const { return jinja_ && jinja_->mentions("reasoning_effort"); }
  const ReasoningMarks& reasoning_marks() const { return marks_; }

  // Returns the conversation, formed so that the model's answer comes next. A last message of an
  // assistant is not closed, so that the model continues it; a blank one is left out. Throws
  // RIFFLE_BAD_ARGUMENT (no messages, the template refuses them or prints nothing of a message that
  // is not an assistant's, or the last one cannot be continued), RIFFLE_BAD_TEXT (not UTF-8),
  // RIFFLE_UNSUPPORTED (the template cannot be evaluated, or has no place for the tools or calls
  // that are given). Characters of messages have the message's number as source.
  SourcedText text(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                   const ChatOptions& options) const;
  // Returns text() as ids. Control tokens spelled in the template become those tokens; the same
  // spelling in a message stays plain text. Added tokens that are not control tokens, such as
  // Qwen3's <think>, are read in messages too, as transformers reads them.
  std::vector<int32_t> tokens(const Tokenizer& tokenizer, const SourcedText& text) const;
  // Tells whether the answer begins inside reasoning that the text has begun: in the template's
  // text after the last message, or in a last message of an assistant that is continued.
  bool begins_reasoning(const SourcedText& text, const std::vector<ChatMessage>& messages) const;

  // Returns the id of the control token with which the end tag of reasoning begins, or -1. The
  // answer follows it, so it is never an end token, whatever a file says.
  int32_t reasoning_end_id(const Tokenizer& tokenizer) const;

  // Returns the ids that end the model's turn besides the vocabulary's end-of-sequence token (such
  // as ChatML's <|im_end|>), if the vocabulary has them. They follow from the text that the
  // template prints after an assistant's message.
  std::vector<int32_t> end_ids(const Tokenizer& tokenizer) const;

 private:
  struct SpecialTexts {
    std::string bos, eos;  // "": the vocabulary has none
  };
  void find_forms();
  void find_call_forms();
  // Returns true if the content of this role's messages is passed as a list of parts.
  bool takes_parts(const std::string& role) const;
  SourcedText rendered(const SpecialTexts& special, const std::vector<ChatMessage>& messages,
                       const ChatOptions& options, bool answer) const;
  Value message_value(const ChatMessage& message, int number) const;
  SourcedText rendered(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                       const ChatOptions& options, bool answer) const;
  SourcedText continued(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                        const ChatOptions& options) const;

  const ChatFamily* family_ = nullptr;
  std::optional<JinjaTemplate> jinja_;  // set if there is no family
  std::string jinja_text_;
  ReasoningMarks marks_;
  // Roles whose content the template reads only as [{"type": "text", "text": ...}], found by trying
  // the template once. Roles that were not tried are treated like the user's.
  std::vector<std::string> roles_of_parts_;
  // Forms of an assistant's calls that the template prints as JSON, found by trying it once.
  bool knows_calls_ = false;
  bool arguments_as_text_ = false;  // arguments are JSON's text, not an object
  bool empty_content_ = false;      // a message without content has "", not None
};

}  // namespace riffle
