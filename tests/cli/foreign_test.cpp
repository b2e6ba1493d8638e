#include "cli/foreign.h"

#include <catch2/catch.hpp>
#include <set>

using namespace riffle::cli;

TEST_CASE("Flags of other programs: each is known once and has an answer of one line", "[cli]") {
  std::set<std::string> seen;
  for (const ForeignFlag& f : foreign_flags()) {
    REQUIRE(!f.spellings.empty());
    for (const std::string& flag : f.spellings) {
      INFO(flag);
      CHECK(seen.insert(flag).second);
      CHECK((flag.size() > 1 && flag[0] == '-'));
      CHECK(flag.find('_') == flag.npos);  // typed underscores become hyphens
      CHECK((f.ours || f.answer));
      if (f.answer) CHECK(std::string(f.answer).find('\n') == std::string::npos);
    }
  }
  for (const ForeignCommand& c : foreign_commands())
    for (const std::string& name : c.names) CHECK(seen.insert(name).second);
}
