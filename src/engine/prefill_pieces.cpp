#include "engine/prefill_pieces.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace riffle {
namespace {

using Clock = std::chrono::steady_clock;

// The first piece measures how fast this machine reads; the others take about kSeconds. Each piece
// reads all weights and all earlier KV once, which costs less the longer it is.
constexpr int64_t kFirst = 2048;
constexpr double kSeconds = 5;

void read_piece(Engine& engine, Sequence& s, std::span<const int32_t> piece,
                std::span<const int64_t> marks, const Engine::Progress& progress) {
  const auto run = engine.begin_prefill(s, piece, nullptr, marks);
  try {
    engine.advance(*run, INFINITY, progress);
  } catch (...) {
    engine.abandon(*run);
    throw;
  }
}

}  // namespace

void prefill_in_pieces(Engine& engine, Sequence& s, std::span<const int32_t> tokens,
                       const Engine::Progress& progress) {
  // Such a selector can neither read in pieces nor fork: its state after a prompt depends on the
  // prompt's end.
  if (!engine.can_fork()) return engine.prefill(s, tokens, nullptr, progress);
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t end = static_cast<int64_t>(s.tokens.size()) + n;
  int64_t size = kFirst;
  for (int64_t first = 0; first < n;) {
    // Avoids a short last piece: the last piece may be half as long again.
    int64_t rows = n - first <= size + size / 2 ? n - first : size;
    rows = engine.piece_rows(s, rows, n - first);
    const auto start = Clock::now();
    const auto shown = [&](double done, double total) {
      const double layers = total / static_cast<double>(rows);
      return !progress ||
             progress(layers * static_cast<double>(first) + done, layers * static_cast<double>(n));
    };
    // Only the end of the prompt is marked, so a window's KV is kept there and not at a piece's
    // end.
    const std::span<const int64_t> marks(&end, first + rows == n ? 1 : 0);
    read_piece(engine, s, tokens.subspan(first, rows), marks, shown);
    first += rows;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double fitting = static_cast<double>(rows) * kSeconds / std::max(seconds, 1e-3);
    size = std::max(kFirst, static_cast<int64_t>(std::min(fitting, 1e9)) / kFirst * kFirst);
  }
}

}  // namespace riffle
