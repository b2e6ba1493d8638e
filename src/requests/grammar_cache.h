// Grammars by text, so that equal texts are compiled once. A few grammars are kept.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "riffle_grammar.h"

namespace riffle::requests {

class GrammarCache {
 public:
  using Grammar = std::shared_ptr<const riffle_grammar>;
  // Returns the grammar that compile() made for an equal key, or calls it. A text that is refused
  // stays refused: throws its Error, each time that it is asked for. Threads may share the cache.
  Grammar get(const std::string& key, const std::function<Grammar()>& compile);

 private:
  struct Entry {
    std::string key;
    Grammar grammar;  // null: `error` says why
    riffle_status status = RIFFLE_OK;
    std::string error;
  };
  std::mutex lock_;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace riffle::requests
