// Studies whether the blocks that a decode step loads could have been loaded earlier.
// usage: prefetch_study MODEL TEXT TOKENS STEPS SHARE   (make prefetch_study; CPU)
//
// Reads TOKENS tokens of the text, then steps through the next STEPS of them with the selector
// share. Pools of several sizes, unified and LRU, are simulated meanwhile. For what it misses,
// three guesses that a GPU could make before the layer's query is known are compared:
//   near     blocks that held half the share or more in the step before, but not the share (a
//            second context with half the share says which)
//   next     neighbours, in the text, of the blocks that were read in the step before
//   layer    blocks that the same KV head of the layer before reads in this step
// Found: of the missed blocks, those that were guessed. Loaded: blocks that a guess would load, for
// each missed block; 1 would be as many as are missed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "riffle.h"
#include "riffle_measure.h"
#include "tests/given_options.h"

using namespace riffle;
using namespace riffle::test;

namespace {

using Blocks = std::set<int32_t>;

// Blocks that each row (layer, KV head) of a step read.
struct Chosen {
  int heads = 1;
  std::vector<Blocks> rows;
  size_t size() const {
    size_t n = 0;
    for (const Blocks& row : rows) n += row.size();
    return n;
  }
};

void check(riffle_status status, const char* what) {
  if (status == RIFFLE_OK) return;
  std::fprintf(stderr, "prefetch_study: %s: %s\n", what, riffle_status_name(status));
  std::exit(1);
}

struct Reader {
  riffle_context* context = nullptr;
  riffle_session* session = nullptr;
  Chosen now;

  Reader(riffle_model* model, const std::vector<int32_t>& tokens, size_t n_prompt, int n_rows,
         int heads, float share) {
    ContextOptions o;
    o.device = DeviceKind::CPU;
    o.n_ctx = static_cast<int32_t>(tokens.size());
    o.selection.selector = SelectorKind::SHARE;
    o.selection.share = share;
    check(context_create(model, &o, &context, nullptr, 0), "the context");
    check(riffle_session_create(context, &session), "the session");
    check(riffle_prefill(session, tokens.data(), n_prompt, nullptr, nullptr), "the prompt");
    now.rows.resize(n_rows);
    now.heads = heads;
    const auto report = [](void* user, const riffle_row_report* r) {
      auto* self = static_cast<Reader*>(user);
      Blocks& row = self->now.rows[size_t(r->layer) * self->now.heads + r->kv_head];
      // The newest block is never loaded.
      for (int i = 0; i < r->n_read; ++i)
        if (r->blocks[i] != r->n_blocks - 1) row.insert(r->blocks[i]);
    };
    check(riffle_set_row_report(context, report, this, false), "row reports");
  }
  void step(int32_t token) {
    for (Blocks& row : now.rows) row.clear();
    check(riffle_step(context, &session, &token, 1), "a step");
  }
};

// A unified LRU pool of blocks of all rows.
struct Pool {
  size_t capacity = 0;
  int64_t clock = 0;
  std::unordered_map<int64_t, int64_t> used;  // by block: when
  std::set<std::pair<int64_t, int64_t>> oldest;

  static int64_t key(size_t row, int32_t block) { return int64_t(row) << 32 | block; }
  bool holds(size_t row, int32_t block) const { return used.count(key(row, block)) > 0; }
  void touch(size_t row, int32_t block) {
    const int64_t k = key(row, block);
    if (const auto at = used.find(k); at != used.end()) oldest.erase({at->second, k});
    else if (used.size() >= capacity) {
      used.erase(oldest.begin()->second);
      oldest.erase(oldest.begin());
    }
    used[k] = ++clock;
    oldest.insert({clock, k});
  }
};

struct Guess {
  const char* name;
  double found = 0, loaded = 0;
};

Blocks neighbours(const Blocks& row, int32_t n_blocks) {
  Blocks out;
  for (const int32_t b : row)
    for (const int32_t next : {b - 1, b + 1})
      if (next >= 0 && next < n_blocks && row.count(next) == 0) out.insert(next);
  return out;
}

Blocks difference(const Blocks& a, const Blocks& b) {
  Blocks out;
  for (const int32_t x : a)
    if (b.count(x) == 0) out.insert(x);
  return out;
}

// One size of the pool, through all steps.
void simulate(double factor, const std::vector<Chosen>& read, const std::vector<Chosen>& half,
              int32_t n_blocks) {
  Pool pool;
  pool.capacity = static_cast<size_t>(factor * double(read[0].size()));
  Guess guesses[] = {{"near"}, {"next"}, {"layer"}};
  double missed = 0, looked = 0;
  for (size_t t = 0; t < read.size(); ++t) {
    const bool counts = t >= 4;  // the pool has filled
    for (size_t row = 0; row < read[t].rows.size(); ++row) {
      const Blocks& wanted = read[t].rows[row];
      if (counts) {
        const auto above = static_cast<size_t>(read[t].heads);
        const Blocks guessed[] = {difference(half[t - 1].rows[row], read[t - 1].rows[row]),
                                  neighbours(read[t - 1].rows[row], n_blocks),
                                  row >= above ? read[t].rows[row - above] : Blocks{}};
        for (int i = 0; i < 3; ++i)
          for (const int32_t b : guessed[i]) {
            if (pool.holds(row, b)) continue;
            guesses[i].loaded += 1;
            guesses[i].found += static_cast<double>(wanted.count(b));
          }
      }
      for (const int32_t b : wanted) {
        if (counts) looked += 1, missed += !pool.holds(row, b);
        pool.touch(row, b);
      }
    }
  }
  std::printf("%5.2f  %5.1f%%", factor, 100 * missed / looked);
  for (const Guess& g : guesses)
    std::printf("  %-6s %5.1f%% %6.2f", g.name, 100 * g.found / missed, g.loaded / missed);
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: prefetch_study MODEL TEXT TOKENS STEPS SHARE\n");
    return 2;
  }
  const auto n_prompt = static_cast<size_t>(std::atoll(argv[3]));
  const auto n_steps = static_cast<size_t>(std::atoll(argv[4]));
  const auto share = static_cast<float>(std::atof(argv[5]));
  riffle_model* model = nullptr;
  check(riffle_model_load(argv[1], nullptr, &model, nullptr, 0), argv[1]);
  std::ifstream file(argv[2]);
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  std::vector<int32_t> tokens(all.size() + 8);
  size_t n = 0;
  check(riffle_tokenize(model, all.data(), all.size(), RIFFLE_TOKENIZE_BOS, tokens.data(),
                        tokens.size(), &n),
        argv[2]);
  if (n < n_prompt + n_steps) {
    std::fprintf(stderr, "prefetch_study: %s has %zu tokens, expected at least %zu\n", argv[2], n,
                 n_prompt + n_steps);
    return 1;
  }
  tokens.resize(n_prompt + n_steps);
  const int n_rows = model_number(model, "n_layers") * model_number(model, "n_kv_heads");
  Reader full(model, tokens, n_prompt, n_rows, model_number(model, "n_kv_heads"), share);
  Reader lower(model, tokens, n_prompt, n_rows, model_number(model, "n_kv_heads"), share / 2);
  std::vector<Chosen> read, half;
  for (size_t t = 0; t < n_steps; ++t) {
    full.step(tokens[n_prompt + t]);
    lower.step(tokens[n_prompt + t]);
    read.push_back(full.now);
    half.push_back(lower.now);
  }
  double kept = 0, of = 0;
  for (size_t t = 1; t < read.size(); ++t)
    for (size_t row = 0; row < read[t].rows.size(); ++row)
      for (const int32_t b : read[t].rows[row])
        of += 1, kept += static_cast<double>(read[t - 1].rows[row].count(b));
  std::printf(
      "%zu tokens, %zu steps, share %g: %.0f blocks a step, %.1f%% of them read in the step "
      "before\n",
      n_prompt, n_steps, double(share), of / double(read.size() - 1), 100 * kept / of);
  std::printf(
      "pool   missed  guess: found, loaded for each missed block (pool in steps' blocks)\n");
  for (const double factor : {0.5, 1.0, 1.25, 1.5, 2.0, 3.0})
    simulate(factor, read, half, static_cast<int32_t>(n_prompt / 16));
  return 0;
}
