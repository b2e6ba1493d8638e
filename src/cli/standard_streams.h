// The standard streams that the process inherits, and output to terminals.
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <string_view>

#include "cli/printable.h"

namespace riffle::cli {

// Opens a placeholder for each of the descriptors 0, 1 and 2 that the caller closed, so that no
// file gets that descriptor: notices would go to the file. Reading or writing the placeholder is an
// error, as it is with a closed stream. Returns false, with errno, if that fails.
bool hold_closed_streams();

// While an object of this class lives, all text written to stdout or stderr passes through
// Printable if that stream is a terminal. riffle's own sequences bypass it with put_controls. Pipes
// and files get their bytes unchanged. Only one object may live at a time.
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
    std::FILE* file = nullptr;   // null: not a terminal, so nothing is changed
    std::FILE* plain = nullptr;  // the stream that file replaced
  };
  static ssize_t write(void* stream, const char* data, size_t n);
  static void open(int fd, std::FILE*& standard, int buffering, Stream& stream);
  static void close(std::FILE*& standard, Stream& stream);

  Stream out_, err_;
};

// Writes colours and movements of the cursor to standard error unchanged. They must contain nothing
// untrusted.
void put_controls(std::string_view controls);

}  // namespace riffle::cli
