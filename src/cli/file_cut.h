// A mapped file, a model's or a session's, that another program shortens while it is in use.
#pragma once

namespace riffle::cli {

// After: reading bytes that are gone ends the program with a line that names the file, and
// EXIT_RUN.
void watch_for_cut_files();

}  // namespace riffle::cli
