#include "model/chat_template.h"

#include <algorithm>

#include "model/tokenizer.h"
#include "util/error.h"

namespace riffle {
namespace {

// Conversations by which a template is compared with a family: up to so many user messages, with a system message and
// without. A template that tells longer ones apart needs a number at least that large; one that mentions such numbers
// (TemplateReader::numbers) is not recognised.
constexpr size_t kMaxUserMessages = 8;
constexpr int64_t kMaxNumbers = 12;

// One conversation's shape, and what the template makes of it.
struct Shape {
  bool system;
  size_t n_user;
  TemplateReader::Outcome outcome;
  TextPieces text;
};

std::vector<std::string> roles_of(bool system, size_t n_user) {
  std::vector<std::string> roles;
  if (system) roles.push_back("system");
  for (size_t i = 0; i < n_user; i++) {
    if (i > 0) roles.push_back("assistant");
    roles.push_back("user");
  }
  return roles;
}

// The text with {bos} and {eos} spelled out, as a template prints them.
TextPieces spelled(const TextPieces& text, const std::string& bos, const std::string& eos) {
  TextPieces out;
  for (const TextPiece& piece : text) {
    if (piece.kind == TextPiece::BOS) append_literal(&out, bos);
    else if (piece.kind == TextPiece::EOS) append_literal(&out, eos);
    else append(&out, {piece});
  }
  return out;
}

bool mentions(const TextPieces& text, TextPiece::Kind kind) {
  return std::any_of(text.begin(), text.end(), [&](const TextPiece& piece) { return piece.kind == kind; });
}

// True if format prints what the template printed, or refuses with an error where the template refuses.
bool same_text(const ChatFormat& format, const std::vector<Shape>& shapes, const std::string& bos,
               const std::string& eos) {
  for (const Shape& shape : shapes) {
    // Without system messages the family has an error for them, whatever the template does.
    if (shape.system && format.family->system_place == ChatFamily::NONE) continue;
    const TextPieces text = chat_pieces(format, shape.system, shape.n_user);
    if ((bos.empty() && mentions(text, TextPiece::BOS)) || (eos.empty() && mentions(text, TextPiece::EOS)))
      return false;
    if (shape.outcome != TemplateReader::Outcome::PRINTED || shape.text != spelled(text, bos, eos)) return false;
  }
  return true;
}

// The template's own default system message, if it has one and is otherwise like the format: what stands in its text
// for one user message where the format's default would. Only a candidate, to be compared.
std::optional<std::string> default_system(const ChatFormat& format, const Shape& one, const std::string& bos,
                                          const std::string& eos) {
  if (format.family->system_place != ChatFamily::OWN) return {};
  const TextPieces text = spelled(chat_pieces_with_default(format, 1), bos, eos);
  const auto is_sought = [](const TextPiece& piece) {
    const TextPiece& inner = piece.kind == TextPiece::TRIMMED ? piece.inside[0] : piece;
    return inner.kind == TextPiece::CONTENT && inner.message == kDefaultSystem;
  };
  const auto at = std::find_if(text.begin(), text.end(), is_sought);
  if (at == text.end() || one.text.empty() || one.text[0].kind != TextPiece::LITERAL) return {};
  const std::string before = at == text.begin() ? "" : text.begin()->text;
  const std::string after = at + 1 == text.end() || (at + 1)->kind != TextPiece::LITERAL ? "" : (at + 1)->text;
  const std::string& whole = one.text[0].text;
  if (whole.size() < before.size() + after.size() || !whole.starts_with(before) || !whole.ends_with(after)) return {};
  return whole.substr(before.size(), whole.size() - before.size() - after.size());
}

// Runs of text: the format's own, with control pieces in it, or what somebody wrote.
struct Run {
  enum Kind { FORMAT, WRITTEN, BOS, EOS } kind;
  std::string text;
};

void flatten(const TextPieces& pieces, const std::vector<ChatMessage>& messages, std::vector<Run>* runs) {
  for (const TextPiece& piece : pieces) {
    switch (piece.kind) {
      case TextPiece::LITERAL: runs->push_back({Run::FORMAT, piece.text}); break;
      case TextPiece::CONTENT:
        runs->push_back({Run::WRITTEN, messages[static_cast<size_t>(piece.message)].content});
        break;
      case TextPiece::BOS: runs->push_back({Run::BOS, ""}); break;
      case TextPiece::EOS: runs->push_back({Run::EOS, ""}); break;
      case TextPiece::TRIMMED: {
        std::vector<Run> inside;
        flatten(piece.inside, messages, &inside);
        size_t first = 0, last = inside.size();
        for (; first < last; first++) {
          inside[first].text = strip_left(inside[first].text);
          if (!inside[first].text.empty()) break;
        }
        for (; last > first; last--) {
          inside[last - 1].text = strip_right(inside[last - 1].text);
          if (!inside[last - 1].text.empty()) break;
        }
        for (; first < last; first++) runs->push_back(std::move(inside[first]));
        break;
      }
    }
  }
}

std::vector<Run> chat_runs(const ChatFormat& format, const std::vector<ChatMessage>& messages) {
  if (messages.empty()) fail(RIFFLE_BAD_ARGUMENT, "the conversation has no messages");
  const bool system = messages[0].role == "system";
  if (system && format.family->system_place == ChatFamily::NONE) {
    fail(RIFFLE_BAD_ARGUMENT, "message 0 has role 'system', but this model's chat template has no system messages");
  }
  for (size_t i = 0; i < messages.size(); i++) {
    if (utf8_error(messages[i].role) >= 0) fail(RIFFLE_BAD_TEXT, "the role of message %zu is not UTF-8", i);
    if (const int64_t bad = utf8_error(messages[i].content); bad >= 0) {
      fail(RIFFLE_BAD_TEXT, "message %zu is not UTF-8: invalid sequence at byte %lld", i, static_cast<long long>(bad));
    }
    if (i == 0 && system) continue;
    const char* expected = (i - system) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      fail(RIFFLE_BAD_ARGUMENT, "message %zu has role '%.40s', expected '%s'", i, messages[i].role.c_str(), expected);
    }
  }
  if (messages.back().role != "user") {
    fail(RIFFLE_BAD_ARGUMENT, "the last message has role '%s', expected 'user'", messages.back().role.c_str());
  }
  std::vector<Run> runs;
  flatten(chat_pieces(format, system, (messages.size() - system + 1) / 2), messages, &runs);
  return runs;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    out.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

// Collects plain text and control tokens in turn. Plain text is only encoded when a control token or the end comes, so
// that neighbouring texts are encoded as one, as Hugging Face's LlamaTokenizer does. In it, control pieces that a
// message spells out stay plain text. User-defined pieces ([INST] is one in some models) do not: sentencepiece matches
// them in any text, and the ids could not be its own if that were prevented.
class TokenWriter {
 public:
  TokenWriter(const Tokenizer& tokenizer, const ChatFormat& format) : tokenizer_(tokenizer) {
    const ChatFamily& family = *format.family;
    for (const std::string& piece : words(family.required)) {
      const int32_t id = tokenizer.control_id(piece);
      if (id < 0) {
        fail(RIFFLE_UNSUPPORTED, "the chat template is of the kind %s, but the vocabulary has no control piece %s",
             family.name, piece.c_str());
      }
      markers_.emplace_back(piece, id);
    }
    for (const std::string& piece : words(family.markers)) {
      if (const int32_t id = tokenizer.control_id(piece); id >= 0) markers_.emplace_back(piece, id);
    }
    for (const int32_t id : {tokenizer.bos_id(), tokenizer.eos_id()}) {
      if (id >= 0 && *tokenizer.piece(id)) markers_.emplace_back(tokenizer.piece(id), id);
    }
  }

  void put(const Run& run) {
    switch (run.kind) {
      case Run::WRITTEN: plain_ += run.text; return;
      case Run::BOS: return control(tokenizer_.bos_id(), "beginning");
      case Run::EOS: return control(tokenizer_.eos_id(), "end");
      case Run::FORMAT: break;
    }
    for (size_t pos = 0; pos < run.text.size();) {
      const std::pair<std::string, int32_t>* longest = nullptr;
      for (const auto& marker : markers_) {
        if (run.text.compare(pos, marker.first.size(), marker.first) == 0 &&
            (!longest || marker.first.size() > longest->first.size())) {
          longest = &marker;
        }
      }
      if (longest) control(longest->second, "");
      else plain_ += run.text[pos];
      pos += longest ? longest->first.size() : 1;
    }
  }

  std::vector<int32_t> take() {
    flush();
    return std::move(ids_);
  }

 private:
  void control(int32_t id, const char* which) {
    if (id < 0) fail(RIFFLE_UNSUPPORTED, "the chat template needs the %s-of-sequence token, the model has none", which);
    flush();
    ids_.push_back(id);
  }
  void flush() {
    const std::vector<int32_t> more = tokenizer_.encode(plain_, false, false);
    ids_.insert(ids_.end(), more.begin(), more.end());
    plain_.clear();
  }

  const Tokenizer& tokenizer_;
  std::vector<std::pair<std::string, int32_t>> markers_;
  std::string plain_;
  std::vector<int32_t> ids_;
};

std::string spelling(const Tokenizer& tokenizer, int32_t id) {
  const char* piece = id < 0 ? nullptr : tokenizer.piece(id);
  return piece ? piece : "";
}

}  // namespace

std::string chat_format_names() {
  std::string names;
  for (const ChatFamily& family : chat_families()) names += (names.empty() ? "" : ", ") + std::string(family.name);
  return names;
}

ChatFormat chat_format_named(std::string_view name) {
  for (const ChatFamily& family : chat_families()) {
    if (name == family.name) return chat_format_of(family);
  }
  fail(RIFFLE_BAD_ARGUMENT, "there is no chat template '%.40s'; riffle has %s", std::string(name).c_str(),
       chat_format_names().c_str());
}

std::optional<ChatFormat> recognise_chat_template(std::string_view template_text, const std::string& bos,
                                                  const std::string& eos) {
  TemplateReader reader(template_text, bos, eos);
  std::vector<Shape> shapes;
  for (size_t n = 1; n <= kMaxUserMessages; n++) {
    for (const bool system : {false, true}) {
      Shape shape{system, n, {}, {}};
      shape.outcome = reader.read(roles_of(system, n), &shape.text);
      // Every family takes conversations without a system message.
      if (!system && shape.outcome != TemplateReader::Outcome::PRINTED) return {};
      shapes.push_back(std::move(shape));
    }
  }
  if (reader.numbers() > kMaxNumbers) return {};
  // Families as they are come first, so that a format that has a name gets it.
  for (const bool as_is : {true, false}) {
    for (const ChatFamily& family : chat_families()) {
      ChatFormat format = chat_format_of(family);
      if (as_is) {
        if (same_text(format, shapes, bos, eos)) return format;
        continue;
      }
      for (const bool bos_first : {family.bos_first, !family.bos_first}) {
        format.bos_first = bos_first;
        format.has_default_system = false;
        format.default_system.clear();
        if (same_text(format, shapes, bos, eos)) return format;
        const std::optional<std::string> text = default_system(format, shapes[0], bos, eos);
        if (!text) continue;
        format.has_default_system = true;
        format.default_system = *text;
        if (same_text(format, shapes, bos, eos)) return format;
      }
    }
  }
  return {};
}

std::optional<ChatFormat> recognise_chat_template(std::string_view template_text, const Tokenizer& tokenizer) {
  return recognise_chat_template(template_text, spelling(tokenizer, tokenizer.bos_id()),
                                 spelling(tokenizer, tokenizer.eos_id()));
}

std::string chat_text(const ChatFormat& format, const std::string& bos, const std::string& eos,
                      const std::vector<ChatMessage>& messages) {
  std::string out;
  for (const Run& run : chat_runs(format, messages)) {
    out += run.kind == Run::BOS ? bos : run.kind == Run::EOS ? eos : run.text;
  }
  return out;
}

std::vector<int32_t> chat_tokens(const Tokenizer& tokenizer, const ChatFormat& format,
                                 const std::vector<ChatMessage>& messages) {
  const std::vector<Run> runs = chat_runs(format, messages);
  TokenWriter out(tokenizer, format);
  for (const Run& run : runs) out.put(run);
  return out.take();
}

std::vector<int32_t> chat_end_ids(const Tokenizer& tokenizer, const ChatFormat& format) {
  std::vector<int32_t> ids;
  for (const std::string& piece : words(format.family->turn_end)) {
    if (const int32_t id = tokenizer.control_id(piece); id >= 0) ids.push_back(id);
  }
  return ids;
}

}  // namespace riffle
