// The texts of a vocabulary's tokens as tries, for finding those that a grammar allows.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riffle::grammar {

// Nodes in preorder: a node's subtree is [node, end), and the tokens in it are
// order[first_token of node .. first_token of end).
struct TokenTrie {
  struct Node {
    uint32_t end, first_token;
    uint8_t byte, depth, height;  // depth: from 1; height: most characters that begin below
    // True if the texts below the node are whole UTF-8 characters, except that the last may be cut.
    // If the node begins a character of several bytes, its other bytes are below too.
    bool characters;
  };
  // ASCII bytes below a node.
  struct Ascii {
    uint64_t low = 0, high = 0;
    bool within(const Ascii& o) const { return !(low & ~o.low) && !(high & ~o.high); }
    bool has(uint8_t byte) const { return ((byte < 64 ? low : high) >> (byte % 64) & 1) != 0; }
    void add(uint8_t byte) { (byte < 64 ? low : high) |= uint64_t{1} << (byte % 64); }
  };
  std::vector<Node> nodes;
  std::vector<Ascii> ascii;
  std::vector<bool> wide;      // true if bytes from 0x80 on are below the node
  std::vector<uint8_t> begun;  // by node: characters begun from the root to the node
  std::vector<int32_t> order;
  std::vector<uint8_t> characters;  // by place in `order`: characters begun in the token
  size_t longest = 0;               // bytes of the longest token

  // Tells whether a UTF-8 character begins with the byte.
  static bool begins(uint8_t byte) { return (byte & 0xc0) != 0x80; }
  uint32_t first_token(uint32_t node) const {
    return node < nodes.size() ? nodes[node].first_token : static_cast<uint32_t>(order.size());
  }
};

class TokenTries {
 public:
  // Few tokens have more bytes. They are in a second trie, so that a limit that only they can reach
  // ("at most 300 characters") does not affect the states for other tokens.
  static constexpr size_t kShort = 16;
  // Longer tokens are never drawn under a grammar.
  static constexpr size_t kLongest = 255;

  // bytes(id): the text that a token adds, "" if it must not be drawn; for all ids below n. marked:
  // control tokens, which add no text to an answer, with the text that grammars have for them.
  TokenTries(int32_t n, const std::function<std::string(int32_t)>& bytes,
             std::span<const int32_t> end_tokens, std::map<int32_t, std::string> marked = {});

  int32_t n_tokens() const { return n_; }
  size_t mask_words() const { return (static_cast<size_t>(n_) + 31) / 32; }
  // Tells whether a trie has the token.
  bool holds(int32_t token) const { return token >= 0 && token < n_ && held_[token]; }
  // Returns the text that a grammar has for the token; "": the one that it adds to an answer.
  std::string_view marked(int32_t token) const {
    const auto it = marked_.find(token);
    return it == marked_.end() ? std::string_view() : std::string_view(it->second);
  }
  std::span<const TokenTrie> tries() const { return tries_; }
  std::span<const int32_t> end_tokens() const { return end_tokens_; }

 private:
  int32_t n_;
  std::vector<TokenTrie> tries_;
  std::vector<bool> held_;
  std::vector<int32_t> end_tokens_;
  std::map<int32_t, std::string> marked_;
};

}  // namespace riffle::grammar
