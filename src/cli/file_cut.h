// Handling of a mapped file (a model's or a session's) that another program shortens while it is in
// use.
#pragma once

namespace riffle::cli {

// After: reading bytes that are gone ends the program with EXIT_RUN and a line that names the file.
void watch_for_cut_files();

}  // namespace riffle::cli
