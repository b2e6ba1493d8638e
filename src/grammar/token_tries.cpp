#include "grammar/token_tries.h"

#include <algorithm>

namespace riffle::grammar {
namespace {

using Tokens = std::vector<std::pair<std::string, int32_t>>;

// Tells whether all bytes below the node continue a character that lacks `more` bytes, the next of
// which is low to high.
bool continues(const TokenTrie& trie, uint32_t node, int more, uint8_t low, uint8_t high) {
  for (uint32_t child = node + 1; child < trie.nodes[node].end; child = trie.nodes[child].end) {
    const TokenTrie::Node& c = trie.nodes[child];
    if (c.byte < low || c.byte > high) return false;
    if (more == 1 ? !c.characters : !continues(trie, child, more - 1, 0x80, 0xbf)) return false;
  }
  return true;
}

// Computes TokenTrie::Node::characters. Requires: the nodes below have theirs.
bool holds_characters(const TokenTrie& trie, uint32_t node) {
  const uint8_t b = trie.nodes[node].byte;
  if (b >= 0xc2 && b <= 0xdf) return continues(trie, node, 1, 0x80, 0xbf);
  if (b >= 0xe0 && b <= 0xef)
    return continues(trie, node, 2, b == 0xe0 ? 0xa0 : 0x80, b == 0xed ? 0x9f : 0xbf);
  if (b >= 0xf0 && b <= 0xf4)
    return continues(trie, node, 3, b == 0xf0 ? 0x90 : 0x80, b == 0xf4 ? 0x8f : 0xbf);
  if (b >= 0xc0) return false;
  for (uint32_t child = node + 1; child < trie.nodes[node].end; child = trie.nodes[child].end)
    if (!TokenTrie::begins(trie.nodes[child].byte) || !trie.nodes[child].characters) return false;
  return true;
}

TokenTrie make_trie(const Tokens& tokens) {
  TokenTrie trie;
  std::vector<uint32_t> path;  // nodes of the previous token
  const std::string* before = nullptr;
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      trie.nodes[path.back()].end = static_cast<uint32_t>(trie.nodes.size());
      path.pop_back();
    }
  };
  for (const auto& [text, id] : tokens) {
    size_t same = 0;
    if (before)
      while (same < text.size() && same < before->size() && text[same] == (*before)[same]) ++same;
    close(same);
    for (size_t i = same; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie.nodes.size()));
      const auto byte = static_cast<uint8_t>(text[i]);
      const uint8_t before_it = i == 0 ? 0 : trie.begun[path[i - 1]];
      trie.nodes.push_back({0, static_cast<uint32_t>(trie.order.size()), byte,
                            static_cast<uint8_t>(i + 1), 0, false});
      trie.begun.push_back(static_cast<uint8_t>(before_it + TokenTrie::begins(byte)));
    }
    trie.order.push_back(id);
    trie.characters.push_back(trie.begun[path.back()]);
    trie.longest = std::max(trie.longest, text.size());
    before = &text;
  }
  close(0);
  trie.ascii.resize(trie.nodes.size());
  trie.wide.resize(trie.nodes.size());
  for (size_t i = trie.nodes.size(); i-- > 0;) {
    TokenTrie::Node& node = trie.nodes[i];
    for (uint32_t child = static_cast<uint32_t>(i) + 1; child < node.end;
         child = trie.nodes[child].end) {
      trie.ascii[i].low |= trie.ascii[child].low;
      trie.ascii[i].high |= trie.ascii[child].high;
      const uint8_t byte = trie.nodes[child].byte;
      node.height = std::max<uint8_t>(node.height,
                                      trie.nodes[child].height + (TokenTrie::begins(byte) ? 1 : 0));
      if (byte < 0x80) trie.ascii[i].add(byte);
      if (byte >= 0x80 || trie.wide[child]) trie.wide[i] = true;
    }
    node.characters = holds_characters(trie, static_cast<uint32_t>(i));
  }
  return trie;
}

}  // namespace

TokenTries::TokenTries(int32_t n, const std::function<std::string(int32_t)>& bytes,
                       std::span<const int32_t> end_tokens, std::map<int32_t, std::string> marked)
    : n_(n), held_(static_cast<size_t>(std::max(n, 0))), marked_(std::move(marked)) {
  for (const int32_t id : end_tokens)
    if (id >= 0 && id < n) end_tokens_.push_back(id);
  Tokens parts[2];
  for (int32_t id = 0; id < n; ++id) {
    if (std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end()) continue;
    std::string text = bytes(id);
    if (text.empty() || text.size() > kLongest) continue;
    held_[static_cast<size_t>(id)] = true;
    parts[text.size() > kShort].emplace_back(std::move(text), id);
  }
  for (Tokens& tokens : parts) {
    std::sort(tokens.begin(), tokens.end());
    tries_.push_back(make_trie(tokens));
  }
}

}  // namespace riffle::grammar
