// Standard input, output and error as the process finds them, and the output to terminals.
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <string_view>

#include "cli/printable.h"

namespace riffle::cli {

// Gives each of the descriptors 0, 1 and 2 that the caller closed a place holder, so that no file
// gets it: notices would land in that file. Reading or writing the place holder is an error, as it
// is with a closed stream. False, with errno: no descriptor is left for one.
bool hold_closed_streams();

// While an object of this class lives, all text written to stdout or stderr passes through
// Printable if that stream is a terminal. riffle's own sequences go around it with put_controls.
// Pipes and files get their bytes unchanged. One at a time.
class TerminalStreams {
 public:
  TerminalStreams();
  ~TerminalStreams();
  TerminalStreams(const TerminalStreams&) = delete;
  TerminalStreams& operator=(const TerminalStreams&) = delete;

 private:
  struct Stream {
    int fd = -1;
    Printable text;
    std::FILE* file = nullptr;   // null: no terminal, so nothing is changed
    std::FILE* plain = nullptr;  // the stream that file replaced
  };
  static ssize_t write(void* stream, const char* data, size_t n);
  static void open(int fd, std::FILE*& standard, int buffering, Stream& stream);
  static void close(std::FILE*& standard, Stream& stream);

  Stream out_, err_;
};

// Colours and movements of the cursor: to standard error unchanged. Nothing untrusted may be in
// them.
void put_controls(std::string_view controls);

}  // namespace riffle::cli
