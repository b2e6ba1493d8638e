// Mixtures of experts. A step goes through the chosen experts' weights once: on the device, or on
// the CPU if they are in host memory. The host groups a chunk of a prompt by expert, and the device
// computes it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/running_memory.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {

// Place of the answer's number in call_: in another cache line of the CPU than the call's number.
static constexpr int kAnswered = 32;

// Makes room for a step's rows of experts in host memory.
void CudaDevice::reserve_host_experts(int64_t n) {
  const int64_t entries = n * config_.experts.n_used;
  if (options_.host_expert_layers == 0 || n <= expert_rows_reserved_) return;
  if (expert_rows_reserved_ > 0) compute_.wait("a step's experts");
  const auto pin = [](size_t bytes) { return pinned(bytes, "a step's experts in host memory"); };
  expert_rows_reserved_ = 0;
  expert_rows_.in = pin(n * config_.dim * sizeof(float));
  expert_rows_.routed = pin(entries * sizeof(Routed));
  expert_rows_.orders = pin(entries * sizeof(int32_t));
  expert_rows_.out = pin(entries * config_.dim * sizeof(float));
  for (const LayerWeights& l : model_.weights.layers)
    if (!l.experts.empty() && weights_.experts_on_host(l)) cpu_experts_.reserve(l.experts, n);
  if (call_.size() == 0) {
    call_ = pin(2 * kAnswered * sizeof(uint32_t));
    std::memset(call_.data(), 0, call_.size());
  }
  expert_rows_reserved_ = n;
  step_memory_.moved();
}

// experts.in: x normalised for the experts; experts.routed: the experts that each row goes through;
// scores: the router's [n][experts.n], on the device, then [n] of the shared expert's gate. The
// router's operands are f32 in a prompt too, so that a token's experts do not depend on rounding.
void CudaDevice::route_rows(const LayerWeights& w, const float* x, int64_t n, bool prompt,
                            const Experts& experts, float* scores) {
  const ExpertsConfig& e = config_.experts;
  auto* const in = experts.in.as<float>();
  const float *norm = weights_.vector(e.next_to_ffn ? w.router_norm : w.ffn_norm),
              *expert_norm = weights_.vector(e.next_to_ffn ? w.expert_norm : w.ffn_norm);
  const Matrix& router = weights_.matrix(w.router);
  float* const shares = w.shared_gate.data ? scores + n * e.n : nullptr;
  Route r;
  r.scores = scores;
  r.n = n;
  r.n_experts = e.n;
  r.n_used = e.n_used;
  r.renormalised = e.renormalised;
  r.routing = e.routing;
  r.choice_bias = weights_.bias(w.choice_bias);
  r.score_scale = e.score_scale;
  r.expert_scales = weights_.bias(w.expert_scales);
  r.routed = experts.routed.as<Routed>();
  // A kernel of a step computes the experts' input while it routes, unless norms subtract the mean.
  const bool apart = prompt || config_.layer_norm;
  if (apart) normalise(x, norm, n, config_.dim, in, WType::F32);
  if (prompt) {
    multiply(router, in, WType::F32, n, scores, e.n, WType::F32, false);
    if (shares)
      multiply(weights_.matrix(w.shared_gate), in, WType::F32, n, shares, 1, WType::F32, false);
  } else {
    Gemv g;
    g.x = apart ? in : x;
    g.ldx = config_.dim;
    g.norm = apart ? nullptr : norm;
    g.eps = config_.stream_eps();
    g.w[0] = router;
    g.y[0] = scores;
    g.ldy[0] = e.n;
    if (shares) {
      g.w[1] = weights_.matrix(w.shared_gate);
      g.y[1] = shares;
      g.ldy[1] = 1;
      g.n_outs = 2;
    }
    gemv_rows(g, n);
  }
  if (!apart) {
    r.x = x;
    r.norm = expert_norm;
    r.dim = config_.dim;
    r.eps = config_.stream_eps();
    r.normed = in;
    r.overlap = overlap_ && w.router_bias.data == nullptr;
  } else if (expert_norm != norm) {
    normalise(x, expert_norm, n, config_.dim, in, WType::F32);
  }
  add_bias({&w.router, scores, e.n, &w.router_bias}, n);
  check(route(r, compute_), "choosing experts");
}

// Computes the output of the shared expert, which is on the device in any case, for rows x of the
// residual stream. The experts' input is no longer needed there: the output takes its place.
SharedOutput CudaDevice::shared_expert(const LayerWeights& w, const float* x, int64_t n,
                                       bool prompt) {
  const ExpertWeights& s = w.shared;
  if (s.w2.rows == 0) return {};
  const Experts& experts = prompt ? prompt_.experts : buffers_.experts;
  const Ffn all = {s.w1, s.w3, s.w2, s.b1, s.b3, w.xielu};
  const float* norm = weights_.vector(w.ffn_norm);
  auto* const out = experts.in.as<float>();
  if (prompt) {
    const WType type = ffn_in_of_prompt(all, x, norm, n);
    multiply(weights_.matrix(s.w2), prompt_.gate.data(), type, n, out, s.w2.rows, WType::F32,
             false);
  } else {
    ffn_in_of_step(all, x, norm, n);
    ffn_out_of_step(s.w2, n, out, Then::Store);
  }
  const float* const shares = experts.scores.as<float>() + n * config_.experts.n;
  return {out, w.shared_gate.data ? shares : nullptr, config_.experts.shared_scale};
}

void CudaDevice::run_host_experts(const LayerWeights& w, int64_t n) {
  cpu_experts_.run(w.experts, expert_rows_.routed.as<Routed>(), expert_rows_.in.as<float>(), n,
                   Phase::Decode, expert_rows_.out.as<float>(), expert_rows_.orders.as<int32_t>());
}

// The device chooses the experts, writes their rows to pinned memory and weighs the results that it
// finds there. A recorded step waits on the device for answer_calls; else this thread waits for the
// device.
void CudaDevice::experts_of_host(const LayerWeights& w, const float* x, int64_t n, float* to) {
  route_rows(w, x, n, false, expert_rows_, buffers_.experts.scores.as<float>());
  if (graphs_.recording()) {
    graphs_.calls.push_back(&w);
    auto* const numbers = call_.as<uint32_t>();
    check(call_host({numbers, numbers + kAnswered}, compute_), "experts in host memory");
  } else {
    compute_.wait("choosing experts");
    run_host_experts(w, n);
  }
  const SharedOutput shared = shared_expert(w, x, n, false);
  check(combine_rows(expert_rows_.out.as<float>(), expert_rows_.routed.as<Routed>(),
                     expert_rows_.orders.as<int32_t>(), n, config_.experts.n_used, config_.dim, to,
                     false, compute_, shared, to == x),
        "adding the experts' output");
}

// Answers the calls of a recorded step that is running. Without `compute` its results are lost. An
// error is thrown only after all calls are answered, so that the device never waits in vain.
void CudaDevice::answer_calls(bool compute) {
  if (graphs_.calls.empty()) return;
  std::atomic_ref<uint32_t> asked(call_.as<uint32_t>()[0]),
      answered(call_.as<uint32_t>()[kAnswered]);
  std::exception_ptr error;
  uint32_t number = answered.load(std::memory_order_relaxed);
  for (const LayerWeights* w : std::exchange(graphs_.calls, {})) {
    ++number;
    auto since = std::chrono::steady_clock::now();
    for (int spins = 0; asked.load(std::memory_order_acquire) != number;) {
      constexpr int kSpins = 10000;
      relax_cpu();
      if (++spins % kSpins != 0) continue;
      // A lost device makes no more calls. The driver is seldom asked: see draw_masked.
      const auto now = std::chrono::steady_clock::now();
      if (now - since < std::chrono::seconds(1)) continue;
      since = now;
      if (cudaStreamQuery(compute_) != cudaErrorNotReady) return;
    }
    try {
      if (compute) run_host_experts(*w, step_.n);
    } catch (...) {
      error = std::current_exception();
      compute = false;
    }
    answered.store(number, std::memory_order_release);
  }
  if (error) std::rethrow_exception(error);
}

// Adds the experts' output for rows x of the residual stream to them, or writes it to another place
// `to`, which may be buffers_.experts.in.
void CudaDevice::experts_of_step(const LayerWeights& w, const float* x, int64_t n, float* to) {
  const ExpertsConfig& e = config_.experts;
  reserve_rows(n);
  reserve_host_experts(n);
  if (weights_.experts_on_host(w)) return experts_of_host(w, x, n, to);
  route_rows(w, x, n, false, buffers_.experts, buffers_.experts.scores.as<float>());
  ExpertsStep step;
  step.x = buffers_.experts.in.as<float>();
  step.n = n;
  step.n_used = e.n_used;
  step.routed = buffers_.experts.routed.as<Routed>();
  if (config_.gated_ffn()) step.w1 = weights_.experts(w, &ExpertWeights::w1);
  step.w3 = weights_.experts(w, &ExpertWeights::w3);
  step.w2 = weights_.experts(w, &ExpertWeights::w2);
  step.b1 = weights_.biases(w, &ExpertWeights::b1);
  step.b3 = weights_.biases(w, &ExpertWeights::b3);
  step.b2 = weights_.biases(w, &ExpertWeights::b2);
  step.hidden = e.hidden_dim;
  step.gate = gate();
  step.between = buffers_.hidden.as<float>();
  step.parts = buffers_.experts.out.as<float>();
  step.overlap = overlap_;
  if (n > 1) {  // a single row chooses different experts
    check(group(step.routed, n * e.n_used, buffers_.experts.places.as<Place>(), compute_),
          "grouping rows by expert");
    step.places = buffers_.experts.places.as<Place>();
  }
  check(experts_up(step, compute_), "multiplying by experts");
  check(experts_down(step, compute_), "multiplying by experts");
  const SharedOutput shared = shared_expert(w, x, n, false);
  check(combine_rows(step.parts, step.routed, nullptr, n, e.n_used, config_.dim, to, overlap_,
                     compute_, shared, to == x),
        "adding the experts' output");
}

// A prompt's rows by expert: expert k has rows [first[k], first[k + 1]).
struct CudaDevice::ExpertRows {
  std::vector<int64_t> first;
  std::vector<int> used;        // experts that have rows, in their order
  std::vector<int> first_tile;  // [used.size() + 1]: where the tiles of each of them begin
  // On the device: the tiles, and `used`.
  const ExpertTile* tiles = nullptr;
  const int32_t* used_on_device = nullptr;
  // Writes tiles to `to`, which has room for most_expert_tiles; first is known.
  void divide(ExpertTile* to) {
    int count = 0;
    for (int k = 0; k + 1 < std::ssize(first); ++k) {
      if (first[k] == first[k + 1]) continue;
      first_tile.push_back(count);
      for (int64_t row = first[k]; row < first[k + 1]; row += kExpertTileRows)
        to[count++] = {
            k, static_cast<int32_t>(used.size()), static_cast<int32_t>(row),
            static_cast<int32_t>(std::min<int64_t>(kExpertTileRows, first[k + 1] - row))};
      used.push_back(k);
    }
    first_tile.push_back(count);
  }
};

// Says whether one launch multiplies the rows of a prompt by many of the layer's experts, in all
// three products.
bool CudaDevice::experts_together(const LayerWeights& w) {
  const auto fits = [&](const Tensor& t, WType type) {
    return t.rows == 0 ||
           (prompt_product_supported(type, t.rows, t.cols, device_.limits) &&
            (t.type == type || t.rows * t.cols * static_cast<int64_t>(size_of(type)) <=
                                   static_cast<int64_t>(prompt_.unpacked.size())));
  };
  const ExpertWeights& one = w.experts[0];
  const cpu::KvType kv = options_.layout.type;
  return fits(one.w1, operand_type(kv, one.w1.type)) &&
         fits(one.w3, operand_type(kv, one.w3.type)) &&
         fits(one.w2, cuda::down_type(kv, config_, one.w2.type));
}

// out = rows a of all experts times their matrices, plus, if `together`, the bias [experts][rows].
// Many experts that have rows are dequantised side by side, and then multiplied together: a single
// one does not fill the device.
void CudaDevice::multiply_experts(const LayerWeights& w, Tensor ExpertWeights::*which,
                                  const ExpertRows& by_expert, bool together, const float* bias,
                                  const void* a, WType type, void* out, WType out_type) {
  const Matrix& stack = weights_.experts(w, which);
  const std::vector<int>& used = by_expert.used;
  const int n = static_cast<int>(by_expert.first.size()) - 1,
            n_used = static_cast<int>(used.size());
  const int64_t rows = stack.rows / n;
  const bool on_host = weights_.experts_on_host(w), unpacks = stack.type != type;
  // Matrices that need no preparation take one launch.
  const auto most = static_cast<int>(
      !unpacks && !on_host ? n : experts_at_once(n, Tensor{stack.type, rows, stack.cols}, type));
  for (int begin = 0, end; begin < n_used; begin = end) {
    end = std::min(begin + most, n_used);
    const int64_t some_rows = (end - begin) * rows, bytes = some_rows * stack.cols * size_of(type);
    Matrix some = stack;
    if (on_host) {
      some = matrix_at(stack.type, some_rows, stack.cols, prompt_.expert_staging.data());
      for (int i = begin, next; i < end; i = next) {  // runs of neighbouring experts
        next = i + 1;
        while (next < end && used[next] == used[next - 1] + 1) ++next;
        weights_.stage(w, which, used[i], rows_of(some, (i - begin) * rows, (next - i) * rows));
      }
    }
    // If `unpacked` is too small for one expert, multiply() converts it in pieces.
    const bool side_by_side = unpacks && bytes <= static_cast<int64_t>(prompt_.unpacked.size());
    if (side_by_side) {
      void* const to = prompt_.unpacked.data();
      check(on_host ? dequantize(some, 0, some_rows, to, type, compute_)
                    : dequantize_parts(some, by_expert.used_on_device + begin, end - begin, rows,
                                       to, type, compute_),
            "dequantising weights");
      some = {type, some_rows, stack.cols, prompt_.unpacked.data()};
    }
    const bool all = !on_host && !side_by_side;  // `some` has the matrices of all experts
    if (together) {
      PromptProduct p;
      p.a = a, p.w = some, p.rows = rows, p.first_used = all ? -1 : begin, p.bias = bias;
      p.tiles = by_expert.tiles + by_expert.first_tile[begin];
      p.n_tiles = by_expert.first_tile[end] - by_expert.first_tile[begin];
      p.out = out, p.out_type = out_type;
      check(prompt_product(p, device_.limits, compute_), "multiplying by experts");
      continue;
    }
    for (int i = begin; i < end; ++i) {
      const int64_t first = by_expert.first[used[i]], count = by_expert.first[used[i] + 1] - first;
      multiply(rows_of(some, (all ? used[i] : i - begin) * rows, rows),
               static_cast<const std::byte*>(a) + first * stack.cols * size_of(type), type, count,
               static_cast<std::byte*>(out) + first * rows * size_of(out_type), rows, out_type,
               false);
    }
  }
}

// Does the same as experts_of_step for a chunk of a prompt. `to` may be prompt_.experts.in.
void CudaDevice::experts_of_prompt(const LayerWeights& w, const float* x, int64_t n, float* to) {
  const ExpertsConfig& e = config_.experts;
  const int64_t dim = config_.dim, hidden = e.hidden_dim, rows = n * e.n_used;
  Experts& p = prompt_.experts;
  route_rows(w, x, n, true, p, p.scores.as<float>());
  const auto pin = [&](Buffer& buffer, size_t bytes) {
    if (buffer.size() < bytes) buffer = pinned(bytes, "grouping rows by expert");
  };
  pin(host_routed_, rows * sizeof(Routed));
  pin(host_orders_by_expert_, expert_orders_bytes(rows, e.n));
  check(cudaMemcpyAsync(host_routed_.data(), p.routed.data(), rows * sizeof(Routed),
                        cudaMemcpyDeviceToHost, compute_),
        "grouping rows by expert");
  compute_.wait("grouping rows by expert");
  ExpertRows by_expert;
  by_expert.first.resize(e.n + 1);
  // Row of each place in the order of experts, the place of each entry of routed, the experts that
  // have rows, and their tiles.
  auto* const from = host_orders_by_expert_.as<int32_t>();
  int32_t* const used = from + 2 * rows;
  group_by_expert(host_routed_.as<Routed>(), rows, e.n_used, by_expert.first, from, from + rows);
  by_expert.divide(reinterpret_cast<ExpertTile*>(used + e.n));
  std::copy(by_expert.used.begin(), by_expert.used.end(), used);
  std::fill(used + by_expert.used.size(), used + e.n, 0);
  check(cudaMemcpyAsync(
            p.orders.data(), from,
            (2 * rows + e.n) * sizeof(int32_t) + by_expert.first_tile.back() * sizeof(ExpertTile),
            cudaMemcpyHostToDevice, compute_),
        "grouping rows by expert");
  const auto* device_from = p.orders.as<int32_t>();
  by_expert.used_on_device = device_from + 2 * rows;
  by_expert.tiles = reinterpret_cast<const ExpertTile*>(by_expert.used_on_device + e.n);
  // w1 has the type of w3.
  const WType type = operand_type(options_.layout.type, w.experts[0].w3.type),
              down_type = cuda::down_type(options_.layout.type, config_, w.experts[0].w2.type);
  check(gather_rows(p.in.as<float>(), device_from, rows, dim, p.sorted.data(), type, compute_),
        "grouping rows by expert");
  const float *b1 = weights_.biases(w, &ExpertWeights::b1),
              *b3 = weights_.biases(w, &ExpertWeights::b3),
              *b2 = weights_.biases(w, &ExpertWeights::b2);
  const bool together = experts_together(w);
  const auto product = [&](Tensor ExpertWeights::*matrix, const float* bias, Buffer& out) {
    multiply_experts(w, matrix, by_expert, together, bias, p.sorted.data(), type, out.data(), type);
  };
  if (config_.gated_ffn()) product(&ExpertWeights::w1, b1, prompt_.gate);
  product(&ExpertWeights::w3, b3, config_.gated_ffn() ? prompt_.up : prompt_.gate);
  // Products of all experts together have added their biases.
  const auto apart = [&](const float* bias, auto&& add_to) {
    for (int k = 0; k < e.n && bias && !together; ++k)
      if (const int64_t m = by_expert.first[k + 1] - by_expert.first[k]; m > 0)
        add_to(k, by_expert.first[k], m);
  };
  const auto of = [](Buffer& buffer, int64_t values, WType t) {
    return buffer.as<std::byte>() + values * size_of(t);
  };
  apart(b3, [&](int k, int64_t begin, int64_t m) {
    activate(of(prompt_.gate, begin * hidden, type), of(prompt_.up, begin * hidden, type),
             m * hidden, type, down_type, b1 ? b1 + k * hidden : nullptr, b3 + k * hidden, hidden);
  });
  if (!b3 || together)
    activate(prompt_.gate.data(), prompt_.up.data(), rows * hidden, type, down_type, nullptr,
             nullptr, hidden);
  auto* const out = p.out.as<float>();
  multiply_experts(w, &ExpertWeights::w2, by_expert, together, b2, prompt_.gate.data(), down_type,
                   out, WType::F32);
  apart(b2, [&](int k, int64_t begin, int64_t m) {
    check(cuda::add_bias(out + begin * dim, m, dim, dim, b2 + k * dim, compute_),
          "the experts' biases");
  });
  const SharedOutput shared = shared_expert(w, x, n, true);
  check(combine_rows(p.out.as<float>(), p.routed.as<Routed>(), device_from + rows, n, e.n_used, dim,
                     to, overlap_, compute_, shared, to == x),
        "adding the experts' output");
}

}  // namespace riffle::cuda
