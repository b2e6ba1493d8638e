// Requests for riffle bench --arrivals: their times, lengths and texts. Only whole numbers and
// exact operations are used, so that a seed gives the same requests everywhere.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "kernels/common/splitmix64.h"
#include "measure/commands/bench/arrivals.h"

namespace riffle::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 28;
constexpr uint64_t kArrivals = 1, kLengths = 2, kShared = 3,
                   kPrompts = 16;  // streams; a prompt's is kPrompts + its number

// Reads a number of tokens at the beginning of `text` and cuts it off; nothing if there is none.
std::optional<int32_t> take_tokens(std::string_view& text) {
  int64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || v < 1 || v > kMaxTokens) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return static_cast<int32_t>(v);
}

void skip_spaces(std::string_view& text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
}

std::vector<RequestLength> read_lengths(const std::string& path, const std::string& text) {
  std::vector<RequestLength> out;
  size_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view rest(text.data() + at, end - at);
    at = end + 1;
    ++line;
    const std::string_view whole = rest;
    while (!rest.empty() && (rest.back() == '\r' || rest.back() == ' ' || rest.back() == '\t'))
      rest.remove_suffix(1);
    skip_spaces(rest);
    if (rest.empty() || rest.front() == '#') continue;
    const std::optional<int32_t> prompt = take_tokens(rest);
    const size_t before = rest.size();
    skip_spaces(rest);
    const std::optional<int32_t> output =
        prompt && rest.size() < before ? take_tokens(rest) : std::nullopt;
    if (!prompt || !output || !rest.empty())
      throw Exit(EXIT_RUN, path + ", line " + std::to_string(line) + ": '" +
                               std::string(whole.substr(0, 60)) +
                               "', expected two numbers of tokens, 1 to " +
                               std::to_string(kMaxTokens) + ": prompt and output");
    out.push_back({*prompt, *output});
  }
  if (out.empty()) throw Exit(EXIT_RUN, path + ": there is no line with prompt and output tokens");
  return out;
}

// Reads PROMPT:OUTPUT.
std::optional<RequestLength> read_pair(std::string_view text) {
  const std::optional<int32_t> prompt = take_tokens(text);
  if (!prompt || text.empty() || text.front() != ':') return std::nullopt;
  text.remove_prefix(1);
  const std::optional<int32_t> output = take_tokens(text);
  if (!output || !text.empty()) return std::nullopt;
  return RequestLength{*prompt, *output};
}

}  // namespace

std::string read_given(ReadFile* read, const std::string& path, const std::string& otherwise) {
  try {
    return read(path);
  } catch (const Exit& e) {
    throw Exit(EXIT_USAGE, otherwise + ": " + e.what());
  }
}

RequestRandom::RequestRandom(uint64_t seed, uint64_t stream)
    : state_(splitmix64_mix(splitmix64_at(seed, 0) + stream)) {}

uint64_t RequestRandom::next() { return splitmix64_next(state_); }
uint64_t RequestRandom::below(uint64_t n) { return (next() >> 32) * n >> 32; }
double RequestRandom::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double RequestRandom::exponential() {
  for (double whole = 0;; ++whole) {
    const double first = uniform();
    // The length of the decreasing run of numbers that begins with `first` is odd with probability
    // exp(-first).
    int length = 1;
    for (double last = first, u = uniform(); u < last; u = uniform()) {
      last = u;
      ++length;
    }
    if (length % 2 == 1) return whole + first;
  }
}

int32_t quantile_of(const std::pair<int, int>* knots, size_t n_knots, uint32_t millionth) {
  size_t i = 1;
  while (i + 1 < n_knots && millionth > static_cast<uint32_t>(knots[i].first) * 10000) ++i;
  const auto [p0, v0] = knots[i - 1];
  const auto [p1, v1] = knots[i];
  return static_cast<int32_t>(v0 + (int64_t{v1} - v0) * (int64_t{millionth} - int64_t{p0} * 10000) /
                                       ((int64_t{p1} - p0) * 10000));
}

RequestLengths::RequestLengths(const std::string& text, ReadFile* read) : spec(text) {
  if (text == "longbench") return;
  if (text.rfind("longbench:", 0) == 0) {
    const char* const begin = text.data() + 10;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), scale);
    if (error != std::errc() || end != text.data() + text.size() ||
        !(scale >= 0.001 && scale <= 1000))
      throw Exit(EXIT_USAGE,
                 "--lengths '" + text + "': expected a factor of 0.001 to 1000 after longbench:");
    return;
  }
  if (const auto pair = read_pair(text)) {
    given.push_back(*pair);
    return;
  }
  const std::string expected = "--lengths '" + text +
                               "': expected longbench[:SCALE], PROMPT:OUTPUT (each 1 to " +
                               std::to_string(kMaxTokens) + " tokens) or a file";
  given = read_lengths(text, read_given(read, text, expected));
}

std::vector<RequestLength> RequestLengths::draw(size_t n, uint64_t seed, int64_t n_ctx) const {
  std::vector<RequestLength> out;
  RequestRandom random(seed, kLengths);
  for (size_t i = 0; i < n; ++i) {
    if (!given.empty()) {
      out.push_back(given[i % given.size()]);
      const RequestLength& l = out.back();
      if (n_ctx > 0 && int64_t{l.prompt} + l.output > n_ctx)
        throw Exit(EXIT_USAGE, "--lengths " + spec + ": a prompt of " + std::to_string(l.prompt) +
                                   " and " + std::to_string(l.output) +
                                   " more tokens do not fit the context of " +
                                   std::to_string(n_ctx) + ": see -c");
      continue;
    }
    RequestLength l;
    const double prompt = scale * quantile_of(kLongBenchPrompt, std::size(kLongBenchPrompt),
                                              static_cast<uint32_t>(random.below(1000000)));
    l.output = quantile_of(kLongBenchOutput, std::size(kLongBenchOutput),
                           static_cast<uint32_t>(random.below(1000000)));
    const int64_t most = n_ctx > 0 ? n_ctx - l.output : kMaxTokens;
    if (most < 1)
      throw Exit(EXIT_USAGE, "--lengths " + spec + ": " + std::to_string(l.output) +
                                 " tokens of output do not fit the context of " +
                                 std::to_string(n_ctx) + ": see -c");
    l.prompt = static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(prompt), 1, most));
    out.push_back(l);
  }
  return out;
}

std::vector<double> poisson_arrivals(size_t n, double rate, uint64_t seed) {
  std::vector<double> out(n, 0.0);
  if (!(rate > 0)) return out;
  RequestRandom random(seed, kArrivals);
  double sum = 0;
  for (double& t : out) {
    sum += random.exponential();
    t = sum / rate;
  }
  return out;
}

std::vector<int32_t> random_prompt(size_t n_tokens, size_t shared_prefix, uint64_t seed,
                                   uint64_t request, const Facts& info) {
  RequestRandom shared(seed, kShared), own(seed, kPrompts + request);
  const auto vocab = static_cast<uint64_t>(info.count("vocab_size")),
             low = std::min<uint64_t>(300, vocab / 2);
  std::vector<int32_t> out;
  out.reserve(n_tokens);
  if (info.id("bos_id") >= 0 && n_tokens > 0) out.push_back(info.id("bos_id"));
  while (out.size() < n_tokens)
    out.push_back(
        static_cast<int32_t>(low + (out.size() < shared_prefix ? shared : own).below(vocab - low)));
  return out;
}

}  // namespace riffle::cli
