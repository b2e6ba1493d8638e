// Multi-head latent attention: cpu and emu give the same bits with any pool, chunks and threads;
// cuts, forks and files change no bit; a session keeps one row a token and layer, without values.
#include <filesystem>

#include "tests/engine/plan/taken_buffers.h"
#include "tests/engine/session_files.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

constexpr KvKind kTypes[] = {KvKind::F16, KvKind::F32, KvKind::Q8};

ContextOptions on(DeviceKind device, SelectorKind selector, KvKind type = KvKind::F16) {
  ContextOptions o = small(selector, device);
  o.kv_type = type;
  return o;
}

std::vector<int32_t> text(size_t first, size_t n) {
  const std::vector<int32_t> all = tiny_tokens();
  return {all.begin() + static_cast<int64_t>(first), all.begin() + static_cast<int64_t>(first + n)};
}

std::string gguf_of(const char* name, const TempDir& temp) {
  const std::string path = temp / (std::string(name) + ".gguf");
  write_file(path, tiny_gguf(tiny_checkpoint(name)));
  return path;
}

// Returns the logits after a prompt and after each of some steps.
std::vector<std::vector<float>> rows_of(const ContextOptions& o, const std::string& path) {
  Runtime r(o, path);
  riffle_session* s = r.session(text(0, 211));
  std::vector<std::vector<float>> rows{r.logits(s)};
  for (const int32_t token : text(211, 9)) {
    r.check(riffle_step(r.context, &s, &token, 1));
    rows.push_back(r.logits(s));
  }
  return rows;
}

}  // namespace

TEST_CASE("latent attention: bits do not depend on chunks, threads and pools", "[model][latent]") {
  const TempDir temp;
  const std::string path = gguf_of("glm4_lite", temp);
  for (const SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::SHARE}))
    for (const KvKind type : kTypes) {
      INFO("selector " << selector << ", KV " << type);
      ContextOptions o = on(DeviceKind::CPU, selector, type);
      const auto want = rows_of(o, path);
      o.prefill_chunk = 37;
      o.n_threads = 1;
      CHECK(rows_of(o, path) == want);
      ContextOptions emu = on(DeviceKind::EMU, selector, type);
      CHECK(rows_of(emu, path) == want);
      emu.slots = 40;
      emu.prefill_chunk = 64;
      CHECK(rows_of(emu, path) == want);
    }
}

TEST_CASE("latent attention: folders and GGUF files give the same bits", "[model][latent]") {
  const TempDir temp;
  for (const char* name : {"glm4_lite", "deepseek2", "deepseek3"}) {
    INFO(name);
    const ContextOptions o = on(DeviceKind::CPU, SelectorKind::DENSE);
    CHECK(rows_of(o, tiny_folder(tiny_checkpoint(name), temp)) == rows_of(o, gguf_of(name, temp)));
  }
}

TEST_CASE("latent attention: saved sessions, cuts and forks go on with the same bits",
          "[model][latent][session_file]") {
  const TempDir temp;
  const std::string path = gguf_of("deepseek3", temp), file = temp / "a.kv";
  const auto more = text(300, 8);
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::SHARE, SelectorKind::PSA, SelectorKind::TWILIGHT}))
    for (const KvKind type : kTypes) {
      INFO("selector " << selector << ", KV " << type);
      std::filesystem::remove(file);
      Runtime a(on(DeviceKind::CPU, selector, type), path),
          b(on(DeviceKind::EMU, selector, type), path);
      riffle_session* s = a.session(text(0, 300));
      for (const int32_t token : more) a.check(riffle_step(a.context, &s, &token, 1));
      save(a, s, file);
      riffle_session* loaded = load(b, file);
      go_on_alike(a, fork_at(a, s, 200), b, fork_at(b, loaded, 200), more);
      go_on_alike(a, s, b, loaded, more);
      for (auto& [r, session] : {std::pair{&a, s}, {&b, loaded}})
        r->check(riffle_session_truncate(session, 130));
      for (auto& [r, session] : {std::pair{&a, s}, {&b, loaded}})
        r->check(riffle_prefill(session, more.data(), more.size(), nullptr, nullptr));
      go_on_alike(a, s, b, loaded, more);
    }
}

TEST_CASE("latent attention: a session keeps one row a token and layer", "[model][latent]") {
  const TempDir temp;
  const std::string path = gguf_of("glm4_lite_wide", temp);
  for (const auto& [type, row] :
       {std::pair{KvKind::F16, 2 * 576}, {KvKind::F32, 4 * 576}, {KvKind::Q8, 576 + 18}}) {
    INFO("KV " << type);
    ContextOptions o = on(DeviceKind::CPU, SelectorKind::DENSE, type);
    Runtime r(o, path);
    MemoryPlan plan{};
    char err[512];
    REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
    const uint64_t blocks = o.n_ctx / o.block_size, layers = 2;
    const auto bytes =
        static_cast<uint64_t>(cpu::kv_row_bytes(static_cast<cpu::KvType>(type), 576));
    CHECK(bytes >= static_cast<uint64_t>(row));
    CHECK(plan.host_kv == layers * blocks * ((bytes * o.block_size + 63) / 64 * 64));
    riffle_session* s = r.session(text(0, 160));
    CHECK(r.stats().host_kv_bytes == layers * 10 * ((bytes * o.block_size + 63) / 64 * 64));
    const int32_t token = 5;
    r.check(riffle_step(r.context, &s, &token, 1));
    CHECK(r.stats().kv_bytes_read == layers * 161 * bytes);
  }
}

TEST_CASE("latent attention: prompts and steps take what the plan says",
          "[model][latent][plan][memory]") {
  const TempDir temp;
  TinyCheckpoint c = tiny_checkpoint("glm4_lite_wide");
  c.config["max_position_embeddings"] = 4096;
  const std::string path = tiny_folder(c, temp);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    INFO("device " << device);
    ContextOptions o = options();
    o.device = device;
    o.n_ctx = 4096;
    o.n_threads = 2;
    o.n_sessions = 3;
    const size_t before = taken().now;
    Runtime r(o, path);
    size_t weights = 0;
    for (const Buffer& b : r.model->model->generated) weights += b.size();
    check_taken(r, o, before + weights);
  }
}
