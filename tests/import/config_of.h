// Reads a config.json as riffle does.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "import/read_config.h"

namespace riffle::test {

inline Config config_of(const std::string& text) {
  return config_from_json(
      {reinterpret_cast<const uint8_t*>(text.data()), text.size(), "config.json"});
}

// Without it a literal is as near to JSON as to a string.
inline Config config_of(const char* text) { return config_of(std::string(text)); }

inline Config config_of(const nlohmann::json& config) { return config_of(config.dump()); }

}  // namespace riffle::test
