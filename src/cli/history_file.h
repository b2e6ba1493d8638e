// The file in which riffle chat keeps the lines that were typed.
#pragma once
#include <string>

namespace riffle::cli {

// $RIFFLE_HISTORY, else riffle/history in $XDG_STATE_HOME or ~/.local/state. By the rule of XDG,
// paths of the latter two that are not absolute are ignored. "": none.
std::string history_path();

// The file that history may be read from and written to: path, or the target of a link, also if it
// does not exist yet. "" if writing a history there would do harm: to a device, a pipe, a folder,
// or a file that holds something else.
std::string history_target(const std::string& path);

}  // namespace riffle::cli
