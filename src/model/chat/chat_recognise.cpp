// Which of the formats a chat template stands for.
#include <algorithm>

#include "model/chat/chat_template.h"
#include "model/text/tokenizer.h"
#include "util/error.h"

namespace riffle {
namespace {

// Conversations by which a template is compared with a family: up to so many user messages, with a
// system message and without. A template that tells longer ones apart needs a number at least that
// large; one that mentions such numbers (TemplateReader::numbers) is not recognised.
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
  return std::any_of(text.begin(), text.end(),
                     [&](const TextPiece& piece) { return piece.kind == kind; });
}

// True if format prints what the template printed, or refuses with an error where the template
// refuses.
bool same_text(const ChatFormat& format, const std::vector<Shape>& shapes, const std::string& bos,
               const std::string& eos) {
  for (const Shape& shape : shapes) {
    // Without system messages the family has an error for them, whatever the template does.
    if (shape.system && format.family->system_place == ChatFamily::NONE) continue;
    const TextPieces text = chat_pieces(format, shape.system, shape.n_user);
    if ((bos.empty() && mentions(text, TextPiece::BOS)) ||
        (eos.empty() && mentions(text, TextPiece::EOS)))
      return false;
    if (shape.outcome != TemplateReader::Outcome::PRINTED || shape.text != spelled(text, bos, eos))
      return false;
  }
  return true;
}

// The template's own default system message, if it has one and is otherwise like the format: what
// stands in its text for one user message where the format's default would. Only a candidate, to be
// compared.
std::optional<std::string> default_system(const ChatFormat& format, const Shape& one,
                                          const std::string& bos, const std::string& eos) {
  if (format.family->system_place != ChatFamily::OWN) return {};
  const TextPieces text = spelled(chat_pieces_with_default(format, 1), bos, eos);
  const auto is_sought = [](const TextPiece& piece) {
    const TextPiece& inner = piece.kind == TextPiece::TRIMMED ? piece.inside[0] : piece;
    return inner.kind == TextPiece::CONTENT && inner.message == kDefaultSystem;
  };
  const auto at = std::find_if(text.begin(), text.end(), is_sought);
  if (at == text.end() || one.text.empty() || one.text[0].kind != TextPiece::LITERAL) return {};
  const std::string before = at == text.begin() ? "" : text.begin()->text;
  const std::string after =
      at + 1 == text.end() || (at + 1)->kind != TextPiece::LITERAL ? "" : (at + 1)->text;
  const std::string& whole = one.text[0].text;
  if (whole.size() < before.size() + after.size() || !whole.starts_with(before) ||
      !whole.ends_with(after))
    return {};
  return whole.substr(before.size(), whole.size() - before.size() - after.size());
}

std::string spelling(const Tokenizer& tokenizer, int32_t id) {
  const char* piece = id < 0 ? nullptr : tokenizer.piece(id);
  return piece ? piece : "";
}

}  // namespace

std::string chat_format_names() {
  std::string names;
  for (const ChatFamily& family : chat_families())
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  return names;
}

ChatFormat chat_format_named(std::string_view name) {
  for (const ChatFamily& family : chat_families()) {
    if (name == family.name) return chat_format_of(family);
  }
  fail(RIFFLE_BAD_ARGUMENT, "there is no chat template '%.40s'; riffle has %s",
       std::string(name).c_str(), chat_format_names().c_str());
}

std::optional<ChatFormat> recognise_chat_template(std::string_view template_text,
                                                  const std::string& bos, const std::string& eos) {
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

std::optional<ChatFormat> recognise_chat_template(std::string_view template_text,
                                                  const Tokenizer& tokenizer) {
  return recognise_chat_template(template_text, spelling(tokenizer, tokenizer.bos_id()),
                                 spelling(tokenizer, tokenizer.eos_id()));
}

}  // namespace riffle
