#include "model/finite_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/cpu/linear/quants.h"
#include "util/error.h"
#include "util/mapped_file.h"
#include "util/thread_pool.h"

namespace riffle {
namespace {

constexpr int64_t kItemBytes = 1 << 20;  // bytes of one item of the thread pool

// An exponent of all ones: infinity or NaN.
bool f16_not_finite(const uint8_t* p) { return (cpu::load_u16(p) & 0x7c00) == 0x7c00; }

// In E8M0, 255 stands for NaN. From 253 on, the largest of a block's values are infinite.
template <DType kType>
bool exponent_not_finite(const uint8_t* block) {
  constexpr DTypeInfo info = dtype_info(kType);
  const uint8_t exponent = block[info.scales_at];
  if (exponent < 253) return false;
  float values[info.block_values];
  cpu::dequant_block<kType>(block, values);
  return exponent == 255 ||
         !std::all_of(values, values + info.block_values, [](float v) { return v - v == 0; });
}

// Tests every value or block of a type without a branch for each, so that the compiler uses vector
// instructions for most types.
template <DType kType>
bool any_not_finite(const uint8_t* data, int64_t n) {
  constexpr DTypeInfo info = dtype_info(kType);
  bool any = false;
  for (int64_t i = 0; i < n; ++i, data += info.block_bytes) {
    if constexpr (kType == DType::F16) {
      any |= f16_not_finite(data);
    } else if constexpr (kType == DType::F32) {
      uint32_t bits;
      memcpy(&bits, data, sizeof bits);
      any |= (bits & 0x7f800000) == 0x7f800000;
    } else if constexpr (kType == DType::BF16) {
      any |= (cpu::load_u16(data) & 0x7f80) == 0x7f80;
    } else if constexpr (info.scales == Scales::Exponent) {
      any |= exponent_not_finite<kType>(data);
    } else {
      any |= f16_not_finite(data + info.d_at);
      if constexpr (info.has_min()) any |= f16_not_finite(data + info.dmin_at);
    }
  }
  return any;
}

// Returns the value, or a block's scale, that is not finite.
float value_of(DType type, const uint8_t* block) {
  if (!is_quantised(type)) {
    float values[cpu::kMaxBlockValues];
    cpu::dequant_blocks(type, block, 1, values);
    return values[0];
  }
  const DTypeInfo info = dtype_info(type);
  if (info.scales == Scales::Exponent) return block[info.scales_at] == 255 ? NAN : INFINITY;
  return cpu::half_at(block + (f16_not_finite(block + info.d_at) ? info.d_at : info.dmin_at));
}

// Rows of a matrix, so that threads can share a large one.
struct Item {
  const NamedTensor* tensor;
  int64_t first, n;
};

std::vector<Item> items_of(const std::vector<NamedTensor>& tensors) {
  std::vector<Item> items;
  for (const NamedTensor& t : tensors) {
    if (t.role == NamedTensor::VECTOR || !t.tensor->data || t.tensor->seed != 0) continue;
    if (t.part_cols > 0) continue;  // the rows of most tokens are never read from the disk
    const int64_t row = row_bytes(t.tensor->type, t.tensor->cols),
                  step = std::max<int64_t>(1, kItemBytes / row);
    for (int64_t first = 0; first < t.tensor->rows; first += step)
      items.push_back({&t, first, std::min(step, t.tensor->rows - first)});
  }
  // In the file's order, since it is read ahead in this order.
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::less<>()(a.tensor->tensor->data, b.tensor->tensor->data);
  });
  return items;
}

std::string file_of(const Model& model, const void* data) {
  const auto* at = static_cast<const uint8_t*>(data);
  for (const auto& file : model.files) {
    const FileView& view = file->view();
    if (!std::less<>()(at, view.data) && std::less<>()(at, view.data + view.size)) return view.name;
  }
  return model.config.name;
}

[[noreturn]] void refuse(const Model& model, const NamedTensor& t, const NotFinite& bad) {
  const std::string expert = t.parts > 1 ? format(", expert %d", t.part) : "";
  bad_model(file_of(model, t.tensor->data), "tensor " + t.name + expert,
            text_of(t.tensor->type, bad),
            "finite numbers; the file is damaged, or its conversion went wrong: compare its "
            "checksum, or convert it again");
}

}  // namespace

NotFinite find_not_finite(DType type, const void* data, int64_t rows, int64_t cols) {
  const DTypeInfo& info = dtype_info(type);
  const int64_t in_row = cols / info.block_values;
  const auto* at = static_cast<const uint8_t*>(data);
  const auto test = [type](const uint8_t* data, int64_t n) {
    return with_type(type, [&]<DType kType>() { return any_not_finite<kType>(data, n); });
  };
  if (!test(at, rows * in_row)) return {};
  int64_t i = 0;
  while (!test(at + i * info.block_bytes, 1)) ++i;
  return {i / in_row, i % in_row, value_of(type, at + i * info.block_bytes)};
}

std::string text_of(DType type, const NotFinite& found) {
  const bool blocks = is_quantised(type);
  return format("%s%g in row %lld, %s %lld", blocks ? "a scale of " : "",
                static_cast<double>(found.value), static_cast<long long>(found.row),
                blocks ? "block" : "column", static_cast<long long>(found.index));
}

FiniteCheck::FiniteCheck(Model& model, int n_threads)
    : model_(model), tensors_(named_tensors(model, *model.file_names)) {
  try {
    thread_ = std::thread([this, n_threads] {
      try {
        run(n_threads);
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  } catch (const std::system_error&) {  // the system could not start a thread
    run(n_threads);
  }
}

FiniteCheck::~FiniteCheck() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void FiniteCheck::finish() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
}

void FiniteCheck::run(int n_threads) {
  const std::vector<Item> items = items_of(tensors_);
  if (items.empty()) return;
  ThreadPool threads(std::max(1, n_threads));
  // The first bad item in order is reported, whichever thread finds one first.
  std::vector<NotFinite> found(items.size());
  threads.parallel_for(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    if (stop_) return;
    const auto& [t, first, n] = items[static_cast<size_t>(i)];
    const int64_t row = row_bytes(t->tensor->type, t->tensor->cols);
    NotFinite bad =
        find_not_finite(t->tensor->type, static_cast<const uint8_t*>(t->tensor->data) + first * row,
                        n, t->tensor->cols);
    if (bad.row >= 0) bad.row += first;
    found[static_cast<size_t>(i)] = bad;
  });
  for (size_t i = 0; i < items.size(); ++i)
    if (found[i].row >= 0) refuse(model_, *items[i].tensor, found[i]);
}

}  // namespace riffle
