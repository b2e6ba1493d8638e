#include "text/tokenizer_json.h"

#include <algorithm>
#include <map>
#include <utility>

#include "text/sentencepiece_model.h"
#include "util/error.h"
#include "util/json_file.h"

namespace riffle {

namespace {

constexpr size_t kMaxSteps = 16;  // steps of a Sequence; nested ones count too
constexpr size_t kMaxAdded = 1 << 16;
constexpr size_t kMaxAddedBytes = 1 << 10;  // bytes of an added token: searching is not free
constexpr size_t kMaxReplaceBytes = 1 << 10;

// An object in the file, with its path for error texts.
class Node {
 public:
  Node(const std::string& file, const Json& value, std::string path)
      : file_(file), value_(value), path_(std::move(path)) {
    if (!value.is_object()) bad_model(file, path_, shown(value), "an object");
  }
  const Json& value() const { return value_; }
  const std::string& path() const { return path_; }
  const std::string& file() const { return file_; }
  std::string field(const char* key) const { return path_ + "." + key; }
  const Json* get(const char* key) const { return find(value_, key); }
  bool boolean(const char* key, bool fallback) const {
    const Json* value = get(key);
    if (!value) return fallback;
    if (!value->is_boolean()) bad_model(file_, field(key), shown(*value), "true or false");
    return value->boolean();
  }
  std::string string(const char* key, const char* fallback = nullptr) const {
    const Json* value = get(key);
    if (!value && fallback) return fallback;
    if (!value || !value->is_string())
      bad_model(file_, field(key), value ? shown(*value) : "none", "a string");
    return value->string();
  }
  const Json& array(const char* key) const {
    const Json* value = get(key);
    if (!value || !value->is_array())
      bad_model(file_, field(key), value ? shown(*value) : "none", "an array");
    return *value;
  }
  Node node(const char* key) const {
    const Json* value = get(key);
    if (!value) bad_model(file_, field(key), "none", "an object");
    return Node(file_, *value, field(key));
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    const Json* value = get(key);
    unsupported(file_, field(key), value ? shown(*value) : "none", expected);
  }

 private:
  const std::string& file_;
  const Json& value_;
  std::string path_;
};

class Reader {
 public:
  Reader(const FileView& file, const TokenizerJsonOptions& options)
      : file_(file.name),
        options_(options),
        root_(parse_json_object(file)),
        top_(file_, root_, "file") {
    spec_.where = file_;
  }

  BpeSpec run() {
    const Node model = child("model");
    read_model_options(model);
    read_vocab(model);
    read_added();
    if (const Json* value = top_.get("normalizer"))
      read_normalizer(Node(file_, *value, "normalizer"));
    if (const Json* value = top_.get("pre_tokenizer"))
      read_pre_tokenizer(Node(file_, *value, "pre_tokenizer"));
    read_decoder();
    mark_bytes();
    read_merges(model);
    if (const Json* value = top_.get("post_processor"))
      read_post_processor(Node(file_, *value, "post_processor"));
    choose_special();
    return std::move(spec_);
  }

 private:
  Node child(const char* key) {
    const Json* value = top_.get(key);
    if (!value) bad_model(file_, key, "none", "an object");
    return Node(file_, *value, key);
  }

  void read_model_options(const Node& model) {
    // Old files have no type; they are BPE if they have merges.
    const std::string type = model.string("type", model.get("merges") ? "BPE" : "none");
    if (type != "BPE") unsupported(file_, "model.type", "\"" + type + "\"", "\"BPE\"");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.string(key, "").empty()) model.refuse(key, "null or \"\"");
    }
    if (const Json* dropout = model.get("dropout"); dropout && !dropout->equals(0))
      model.refuse("dropout", "null");
    spec_.ignore_merges = model.boolean("ignore_merges", false);
    spec_.byte_fallback = model.boolean("byte_fallback", false);
    spec_.fuse_unk = model.boolean("fuse_unk", false);
  }

  uint64_t token_id(const Json& value, const std::string& field) const {
    if (!value.is_unsigned() || value.whole() >= static_cast<uint64_t>(options_.max_vocab)) {
      bad_model(file_, field, shown(value), "an id below " + std::to_string(options_.max_vocab));
    }
    return value.whole();
  }

  // Returns the piece at id; the list grows to hold it.
  VocabPiece& piece_at(uint64_t id, size_t n_tokens, const std::string& field) {
    // A few ids may be unused, but the file must account for the room that the list takes.
    if (id >= 2 * n_tokens + 1024) {
      bad_model(file_, field, "id " + std::to_string(id),
                "an id below " + std::to_string(2 * n_tokens + 1024) + ", as there are " +
                    std::to_string(n_tokens) + " pieces");
    }
    if (id >= spec_.pieces.size()) {
      spec_.pieces.resize(id + 1, {"", 0, VocabPiece::UNUSED});
      spec_.in_model.resize(id + 1, false);
    }
    return spec_.pieces[id];
  }

  void read_vocab(const Node& model) {
    const Node vocab = model.node("vocab");
    if (vocab.value().empty()) bad_model(file_, "model.vocab", "no pieces", "some");
    size_t n_added = 0;
    if (const Json* added = top_.get("added_tokens")) n_added = added->size();
    n_tokens_ = vocab.value().size() + n_added;
    for (const auto& [text, value] : vocab.value().members()) {
      const auto field = [&, &text = text] { return "model.vocab \"" + text.substr(0, 80) + "\""; };
      // Skipped here: only an added token may have such an id, and read_added() checks the ids of
      // those.
      if (value.is_unsigned() && text == options_.pad_token &&
          value.whole() >= static_cast<uint64_t>(options_.max_vocab)) {
        continue;
      }
      const uint64_t id = token_id(value, field());
      VocabPiece& piece = piece_at(id, n_tokens_, field());
      if (spec_.in_model[id])
        bad_model(file_, field(), "id " + std::to_string(id), "an id that no other piece has");
      piece = {text, 0, VocabPiece::NORMAL};
      spec_.in_model[id] = true;
    }
  }

  void read_added() {
    const Json* list = top_.get("added_tokens");
    if (!list) return;
    if (!list->is_array() || list->size() > kMaxAdded) {
      bad_model(file_, "added_tokens",
                list->is_array() ? std::to_string(list->size()) + " tokens" : shown(*list),
                "an array of at most " + std::to_string(kMaxAdded));
    }
    std::vector<bool> seen;
    Spellings texts;
    for (size_t i = 0; i < list->size(); i++) {
      const Node node(file_, (*list)[i], "added_tokens[" + std::to_string(i) + "]");
      AddedToken token;
      token.text = node.string("content");
      if (token.text.empty() || token.text.size() > kMaxAddedBytes) {
        bad_model(file_, node.field("content"), std::to_string(token.text.size()) + " bytes",
                  "1 to " + std::to_string(kMaxAddedBytes));
      }
      token.special = node.boolean("special", false) && !is_part_of_answers(token.text);
      token.single_word = node.boolean("single_word", false);
      token.lstrip = node.boolean("lstrip", false);
      token.rstrip = node.boolean("rstrip", false);
      token.normalized = node.boolean("normalized", !token.special);
      const Json* id = node.get("id");
      if (!id) bad_model(file_, node.field("id"), "none", "an id");
      // A padding token is often added without a row of the embedding; no text needs it. Nor does
      // any need Gemma 3's image placeholder, which its text-only sizes have too.
      if ((token.text == options_.pad_token || token.text == "<image_soft_token>") &&
          id->is_unsigned() && id->whole() >= static_cast<uint64_t>(options_.max_vocab)) {
        continue;
      }
      const uint64_t at = token_id(*id, node.field("id"));
      VocabPiece& piece = piece_at(at, n_tokens_, node.field("id"));
      seen.resize(std::max(seen.size(), spec_.pieces.size()), false);
      if (seen[at] || (spec_.in_model[at] && piece.text != token.text)) {
        bad_model(file_, node.field("id"), std::to_string(at) + ", which another piece has",
                  "an id of its own");
      }
      seen[at] = true;
      piece = {token.text, 0, token.special ? VocabPiece::CONTROL : VocabPiece::USER_DEFINED};
      token.id = static_cast<int32_t>(at);
      texts.add(token.text, token.id);
      spec_.added.push_back(std::move(token));
    }
    texts.sort();
    const auto& sorted = texts.entries();
    for (size_t i = 1; i < sorted.size(); i++) {
      if (sorted[i].first == sorted[i - 1].first) {
        bad_model(file_, "added_tokens", "\"" + sorted[i].first.substr(0, 80) + "\" twice",
                  "it once");
      }
    }
  }

  void read_merges(const Node& model) {
    const PieceIds ids(spec_.pieces, spec_.in_model);
    if (const Json* unk = model.get("unk_token")) {
      if (!unk->is_string()) bad_model(file_, "model.unk_token", shown(*unk), "a string");
      spec_.unk_id = ids.find(unk->string());
      if (spec_.unk_id < 0)
        bad_model(file_, "model.unk_token", shown(*unk), "a piece of the vocabulary");
    }
    const Json& list = model.array("merges");
    spec_.merges.reserve(list.size());
    for (size_t i = 0; i < list.size(); i++) {
      const Json& merge = list[i];
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view text = merge.string();
        const size_t space = text.find(' ');
        if (space != text.npos && text.find(' ', space + 1) == text.npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].string();
        right = merge[1].string();
      }
      if (left.empty() || right.empty()) {
        bad_model(file_, "model.merges[" + std::to_string(i) + "]", shown(merge), "two pieces");
      }
      spec_.merges.push_back(make_merge(ids, left, right, i, file_, "model.merges"));
    }
  }

  // Calls each for the members of a Sequence in order, or for the node itself.
  template <class Each>
  void each_step(const Node& node, const char* members, const Each& each, size_t depth = 0) {
    if (node.string("type") != "Sequence") {
      if (++n_steps_ > 3 * kMaxSteps) {
        unsupported(file_, node.path(), "too many steps",
                    "at most " + std::to_string(3 * kMaxSteps) + " in the file");
      }
      return each(node);
    }
    if (depth == 4) unsupported(file_, node.path(), "Sequence nested too deep", "at most 4 levels");
    const Json& list = node.array(members);
    if (list.size() > kMaxSteps) {
      unsupported(file_, node.field(members), std::to_string(list.size()) + " steps",
                  "at most " + std::to_string(kMaxSteps));
    }
    for (size_t i = 0; i < list.size(); i++) {
      each_step(Node(file_, list[i], node.field(members) + "[" + std::to_string(i) + "]"), members,
                each, depth + 1);
    }
  }

  void read_normalizer(const Node& root) {
    each_step(root, "normalizers", [&](const Node& node) {
      const std::string type = node.string("type");
      NormalizerStep step;
      if (type == "NFC") {
        step.kind = NormalizerStep::NFC;
      } else if (type == "Prepend") {
        step.kind = NormalizerStep::PREPEND;
        step.to = node.string("prepend");
      } else if (type == "Replace") {
        step.kind = NormalizerStep::REPLACE;
        const Node pattern = node.node("pattern");
        if (!pattern.get("String")) node.refuse("pattern", "a String");
        step.from = pattern.string("String");
        step.to = node.string("content");
        if (step.from.empty()) bad_model(file_, pattern.field("String"), "\"\"", "some text");
      } else {
        node.refuse("type", "\"NFC\", \"Prepend\", \"Replace\" or \"Sequence\"");
      }
      if (std::max(step.from.size(), step.to.size()) > kMaxReplaceBytes) {
        unsupported(file_, node.path(), "a text too long",
                    "at most " + std::to_string(kMaxReplaceBytes) + " bytes");
      }
      spec_.normalizer.push_back(std::move(step));
    });
  }

  void read_pre_tokenizer(const Node& root) {
    each_step(root, "pretokenizers", [&](const Node& node) {
      const std::string type = node.string("type");
      if (spec_.byte_level)
        unsupported(file_, node.path(), type + " after ByteLevel", "ByteLevel as the last step");
      SplitStep step;
      if (type == "Split") {
        step = read_split(node);
      } else if (type == "Digits") {
        const bool each = node.boolean("individual_digits", false);
        step.pattern.emplace(each ? kDigitPattern : kDigitsPattern, file_, node.path());
      } else if (type == "ByteLevel") {
        step.kind = SplitStep::BYTE_LEVEL;
        step.add_prefix_space = node.boolean("add_prefix_space", true);
        if (node.boolean("use_regex", true)) step.pattern.emplace(kGpt2Pattern, file_, node.path());
        spec_.byte_level = true;
      } else if (type == "Metaspace") {
        step = read_metaspace(node);
      } else {
        node.refuse("type", "\"Split\", \"Digits\", \"ByteLevel\", \"Metaspace\" or \"Sequence\"");
      }
      spec_.splits.push_back(std::move(step));
    });
  }

  SplitStep read_split(const Node& node) {
    SplitStep step;
    const Node pattern = node.node("pattern");
    if (pattern.get("Regex")) {
      step.pattern.emplace(pattern.string("Regex"), file_, pattern.field("Regex"));
    } else {
      step.pattern =
          SplitPattern::literal(pattern.string("String"), file_, pattern.field("String"));
    }
    static constexpr std::pair<const char*, SplitStep::Behavior> kBehaviors[] = {
        {"Isolated", SplitStep::ISOLATED},
        {"Removed", SplitStep::REMOVED},
        {"MergedWithPrevious", SplitStep::MERGED_WITH_PREVIOUS},
        {"MergedWithNext", SplitStep::MERGED_WITH_NEXT},
        {"Contiguous", SplitStep::CONTIGUOUS}};
    const std::string name = node.string("behavior");
    const auto it = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                 [&](const auto& behavior) { return name == behavior.first; });
    if (it == std::end(kBehaviors))
      node.refuse("behavior",
                  "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or "
                  "\"Contiguous\"");
    step.behavior = it->second;
    step.invert = node.boolean("invert", false);
    return step;
  }

  SplitStep read_metaspace(const Node& node) {
    SplitStep step;
    step.kind = SplitStep::METASPACE;
    step.symbol = node.string("replacement", "\xE2\x96\x81");
    if (step.symbol != kSpaceSymbol) node.refuse("replacement", "\"\xE2\x96\x81\"");
    // Older files have add_prefix_space instead.
    const std::string scheme =
        node.string("prepend_scheme", node.boolean("add_prefix_space", true) ? "always" : "never");
    if (scheme == "always") step.prepend = SplitStep::ALWAYS;
    else if (scheme == "first") step.prepend = SplitStep::FIRST;
    else if (scheme != "never") node.refuse("prepend_scheme", "\"always\", \"first\" or \"never\"");
    step.split = node.boolean("split", true);
    return step;
  }

  // Pieces become text by their kind; this checks that the decoder agrees.
  void read_decoder() {
    const Json* value = top_.get("decoder");
    if (!value) {
      if (spec_.byte_level) return;
      unsupported(file_, "decoder", "none", "one that turns \xE2\x96\x81 into spaces");
    }
    bool spaces = false, bytes = false;
    each_step(Node(file_, *value, "decoder"), "decoders", [&](const Node& node) {
      const std::string type = node.string("type");
      if (type == "ByteLevel" && spec_.byte_level) {
        spaces = true;
      } else if (type == "Metaspace" && !spec_.byte_level) {
        spec_.strip_first_space = read_metaspace(node).prepend != SplitStep::NEVER;
        spaces = true;
      } else if (type == "Replace" && !spec_.byte_level) {
        const Node pattern = node.node("pattern");
        if (!pattern.get("String") || pattern.string("String") != kSpaceSymbol ||
            node.string("content") != " ") {
          node.refuse("pattern", "\"\xE2\x96\x81\" with content \" \"");
        }
        spaces = true;
      } else if (type == "ByteFallback" && !spec_.byte_level) {
        bytes = true;
      } else if (type == "Fuse" && !spec_.byte_level) {
      } else if (type == "Strip" && !spec_.byte_level) {
        const Json *start = node.get("start"), *stop = node.get("stop");
        if (node.string("content") != " " || !start || (!start->equals(0) && !start->equals(1)) ||
            (stop && !stop->equals(0))) {
          unsupported(file_, node.path(), shown(node.value()),
                      "content \" \", start 0 or 1, stop 0");
        }
        spec_.strip_first_space = start->equals(1);
      } else {
        node.refuse("type",
                    spec_.byte_level
                        ? "\"ByteLevel\", as the pre_tokenizer is"
                        : "\"Metaspace\", or \"Replace\", \"ByteFallback\", \"Fuse\", \"Strip\"");
      }
    });
    if (!spaces) unsupported(file_, "decoder", shown(*value), "one that turns pieces into text");
    if (!spec_.byte_level && spec_.byte_fallback != bytes) {
      unsupported(file_, "decoder", bytes ? "ByteFallback" : "no ByteFallback",
                  spec_.byte_fallback ? "ByteFallback, as the model has it"
                                      : "none, as the model has none");
    }
  }

  void mark_bytes() {
    if (spec_.byte_level || !spec_.byte_fallback) return;
    for (VocabPiece& piece : spec_.pieces) {
      if (piece.type == VocabPiece::NORMAL && byte_of_piece(piece.text) >= 0)
        piece.type = VocabPiece::BYTE;
    }
  }

  // Reads the tokens that are put around a text: a beginning of sequence or nothing.
  void read_post_processor(const Node& root) {
    each_step(root, "processors", [&](const Node& node) {
      const std::string type = node.string("type");
      if (type == "ByteLevel") return;  // offsets alone
      if (type != "TemplateProcessing")
        node.refuse("type", "\"TemplateProcessing\", \"ByteLevel\" or \"Sequence\"");
      bool text_seen = false;
      for (const Json& part : node.array("single").elements()) {
        const Node member(file_, part, node.field("single"));
        if (member.get("Sequence")) {
          text_seen = true;
          continue;
        }
        const std::string name = member.node("SpecialToken").string("id");
        if (text_seen || spec_.add_bos)
          node.refuse("single", "one token before the text at most, and none after it");
        const Json* known = node.get("special_tokens");
        const Json* entry = known && known->is_object() ? find(*known, name.c_str()) : nullptr;
        if (!entry)
          bad_model(file_, node.field("special_tokens"), "no \"" + name + "\"",
                    "every token of single");
        const Json& ids = Node(file_, *entry, node.field("special_tokens")).array("ids");
        if (ids.size() != 1) node.refuse("special_tokens", "one id for each token");
        spec_.bos_id = static_cast<int>(token_id(ids[0], node.field("special_tokens")));
        if (static_cast<size_t>(spec_.bos_id) >= spec_.pieces.size()) {
          bad_model(file_, node.field("special_tokens"), shown(ids), "ids of the vocabulary");
        }
        spec_.add_bos = true;
      }
    });
  }

  void choose_special() {
    const auto id_of = [&](const std::string& text) {
      for (size_t id = 0; !text.empty() && id < spec_.pieces.size(); id++) {
        if (spec_.pieces[id].text == text && spec_.pieces[id].type != VocabPiece::UNUSED)
          return static_cast<int>(id);
      }
      return -1;
    };
    if (const int id = id_of(options_.bos_token); id >= 0 && spec_.bos_id < 0) spec_.bos_id = id;
    spec_.eos_id = id_of(options_.eos_token);
    const int n = static_cast<int>(spec_.pieces.size());
    if (spec_.bos_id < 0 && options_.bos_id < n) spec_.bos_id = options_.bos_id;
    if (spec_.eos_id < 0 && options_.eos_id < n) spec_.eos_id = options_.eos_id;
    if (options_.add_bos) spec_.add_bos = *options_.add_bos && spec_.bos_id >= 0;
  }

  const std::string& file_;
  const TokenizerJsonOptions& options_;
  const Json root_;
  Node top_;
  BpeSpec spec_;
  size_t n_tokens_ = 0, n_steps_ = 0;
};

}  // namespace

BpeSpec parse_tokenizer_json(const FileView& file, const TokenizerJsonOptions& options) {
  return Reader(file, options).run();
}

}  // namespace riffle
