#include "quantize/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "formats/gguf_split.h"
#include "formats/gguf_writer.h"
#include "import/load_model.h"
#include "kernels/cpu/linear/quants.h"
#include "model/families/family.h"
#include "model/families/fields.h"
#include "model/finite_weights.h"
#include "quantize/gguf_metadata.h"
#include "quantize/quantize.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "util/cpu_limits.h"
#include "util/error.h"
#include "util/mapped_file.h"
#include "util/memory_limits.h"
#include "util/thread_pool.h"

namespace riffle {

namespace {

constexpr int64_t kBatchValues = 8 << 20;  // a batch's results are held in memory
constexpr int64_t kItemValues = 64 << 10;  // values of one item of the thread pool

int threads_or_all(int n) { return n > 0 ? n : default_threads(); }

// Receives the bytes of converted rows, in order.
using Sink = std::function<void(const void* data, uint64_t bytes)>;

// The order of rows in the file. head_dim above 0: rows change places within heads, pairs (i, i +
// head_dim/2) become neighbours. k_heads above 0: heads of the values, which are grouped by their
// heads of the keys, become tiled (RecurrenceConfig::tiled).
struct Order {
  int64_t head_dim = 0;
  int64_t k_heads = 0, v_heads = 0, v_first = 0, v_size = 0;
  bool v_columns = false;  // columns in place of rows
  bool rows_move() const { return head_dim > 0 || (k_heads > 0 && !v_columns); }
  bool columns_move() const { return k_heads > 0 && v_columns; }

  // Returns the source's row for row r of the file.
  int64_t row(int64_t r) const {
    if (k_heads > 0 && !v_columns) return of_values(r);
    if (head_dim <= 0) return r;
    const int64_t in_head = r % head_dim;
    return r - in_head + in_head % 2 * (head_dim / 2) + in_head / 2;
  }
  int64_t of_values(int64_t r) const {
    if (r < v_first) return r;
    const int64_t head = (r - v_first) / v_size, within = (r - v_first) % v_size;
    const int64_t grouped = head % k_heads * (v_heads / k_heads) + head / k_heads;
    return v_first + grouped * v_size + within;
  }
};

class Converter {
 public:
  Converter(Model& model, int n_threads, const LoadProgress& progress, double total)
      : model_(model), threads_(threads_or_all(n_threads)), progress_(progress), total_(total) {}

  void matrix(const NamedTensor& t, DType type, const Order& order, const Sink& sink) {
    const Tensor& from = *t.tensor;
    const bool same = from.data && type == from.type && !order.columns_move();
    // Whole heads, so that a batch's rows come from the same rows of the source.
    const int64_t unit = std::max<int64_t>(order.head_dim, 1);
    const int64_t batch = std::max<int64_t>(1, kBatchValues / (from.cols * unit)) * unit;
    const int64_t item_rows = std::max<int64_t>(1, kItemValues / from.cols),
                  row_out = row_bytes(type, from.cols);
    if (out_.size() < static_cast<size_t>(batch * row_out))
      out_.resize(static_cast<size_t>(batch * row_out));
    scratch_.resize(static_cast<size_t>(threads_.size()));
    for (auto& s : scratch_) s.resize(static_cast<size_t>(3 * from.cols));
    for (int64_t first = 0; first < from.rows; first += batch) {
      const int64_t n = std::min(batch, from.rows - first), items = (n + item_rows - 1) / item_rows;
      errors_.assign(static_cast<size_t>(items), {});
      threads_.parallel_for(items, [&](int64_t item, int thread) {
        for (int64_t r = item * item_rows; r < std::min(n, (item + 1) * item_rows); ++r) {
          const int64_t source = order.row(first + r);
          std::byte* to = out_.data() + r * row_out;
          check_row(t, source);
          if (same)
            std::memcpy(to, static_cast<const std::byte*>(from.data) + source * row_out,
                        static_cast<size_t>(row_out));
          else
            row(t, source, type, order, to, scratch_[static_cast<size_t>(thread)],
                &errors_[static_cast<size_t>(item)]);
        }
      });
      // In the order of the items, so that the sums do not depend on the threads.
      for (const Error2& e : errors_) sums.error += e.error, sums.norm += e.norm;
      sink(out_.data(), static_cast<uint64_t>(n * row_out));
      const int64_t row_in = row_bytes(from.type, from.cols);
      if (from.data && order.k_heads == 0)
        drop(static_cast<const std::byte*>(from.data) + first * row_in,
             static_cast<uint64_t>(n * row_in));
      advance(static_cast<double>(n * row_in));
    }
  }

  // Writes norms and biases.
  void vector(const NamedTensor& t, const Order& order, const Sink& sink) {
    std::vector<float> values(static_cast<size_t>(t.tensor->cols));
    const auto* from = static_cast<const float*>(t.tensor->data);
    for (int64_t i = 0; i < t.tensor->cols; ++i)
      values[static_cast<size_t>(i)] = from[order.row(i)];
    sink(values.data(), values.size() * sizeof(float));
    advance(static_cast<double>(t.tensor->bytes()));
  }

  ConversionSums sums;

 private:
  struct Error2 {
    double error = 0, norm = 0;
  };

  // Throws if the row has values that a device would refuse.
  static void check_row(const NamedTensor& t, int64_t source) {
    const Tensor& from = *t.tensor;
    if (!from.data) return;
    const auto* data = static_cast<const std::byte*>(from.data);
    NotFinite found =
        find_not_finite(from.type, data + source * row_bytes(from.type, from.cols), 1, from.cols);
    if (found.row < 0) return;
    found.row = source;
    throw Error(RIFFLE_BAD_MODEL, t.name + ": found " + text_of(from.type, found) +
                                      ", expected finite numbers; the file is damaged, or its "
                                      "conversion went wrong");
  }

  static void row(const NamedTensor& t, int64_t source, DType type, const Order& order,
                  std::byte* to, std::vector<float>& scratch, Error2* e) {
    const int64_t cols = t.tensor->cols;
    float *x = scratch.data(), *back = x + cols, *given = back + cols;
    rows_of(*t.tensor, source, 1, order.columns_move() ? given : x);
    for (int64_t i = 0; order.columns_move() && i < cols; ++i) x[i] = given[order.of_values(i)];
    quantise_rows(type, x, 1, cols, to, t.name.c_str(), source);
    cpu::dequant_blocks(type, reinterpret_cast<const uint8_t*>(to), cols, back);
    for (int64_t i = 0; i < cols; ++i) {
      const double d = static_cast<double>(back[i]) - x[i];
      e->error += d * d;
      e->norm += static_cast<double>(x[i]) * x[i];
    }
  }

  void drop(const void* data, uint64_t bytes) {
    for (const auto& file : model_.files) file->drop(data, bytes);
  }

  void advance(double bytes) {
    done_ += bytes;
    if (progress_ && !progress_(done_, total_))
      throw Error(RIFFLE_ABORTED, "converting the weights was cancelled");
  }

  Model& model_;
  ThreadPool threads_;
  const LoadProgress& progress_;
  double done_ = 0, total_;
  std::vector<std::byte> out_;
  std::vector<std::vector<float>> scratch_;
  std::vector<Error2> errors_;
};

int bits_of(DType type) {
  return dtype_info(type).block_bytes * 8 * 256 / dtype_info(type).block_values;
}  // bits of 256 weights

void write_vocabulary(GgufFileWriter& out, const std::string& folder, const Model& model) {
  FolderVocab vocab = vocab_of_folder(folder, model.config);
  if (!vocab.sentencepiece) return write_bpe(out, *vocab.bpe, model.config);
  const std::string path = folder + "/tokenizer.model";
  SentencePieceModel pieces = parse_sentencepiece_model(vocab.sentencepiece->view().text(), path);
  const auto require = [&](bool ok, const char* field, const char* found, const char* expected) {
    if (!ok) unsupported(path, field, found, expected);
  };
  require(pieces.bpe, "model_type", "a unigram model", "BPE, to write it as GGUF");
  require(pieces.escape_whitespaces, "escape_whitespaces", "false", "true, to write it as GGUF");
  require(!pieces.remove_extra_whitespaces, "remove_extra_whitespaces", "true",
          "false, to write it as GGUF");
  require(!pieces.treat_whitespace_as_suffix, "treat_whitespace_as_suffix", "true",
          "false, to write it as GGUF");
  // Tokens that were added to the vocabulary after training.
  if (vocab.bpe) {
    for (size_t id = pieces.pieces.size(); id < vocab.bpe->pieces.size(); ++id)
      pieces.pieces.push_back(vocab.bpe->pieces[id]);
  }
  write_pieces(out, std::move(pieces.pieces), pieces.add_dummy_prefix,
               vocab.bpe ? vocab.bpe->add_bos : vocab.add_bos, model.config);
}

// Copies pieces in the spelling of write_pieces, whatever program wrote the file: some older ones
// have space symbols in user-defined pieces, which llama.cpp then does not find.
void copy_pieces(GgufFileWriter& out, const GgufFile& gguf, const std::string& key) {
  const std::vector<int64_t> types = *gguf.integers("tokenizer.ggml.token_type");
  std::vector<std::string> texts;
  const std::vector<std::string_view> pieces = *gguf.strings(key);
  for (const std::string_view text : pieces)
    texts.push_back(types[texts.size()] == VocabPiece::USER_DEFINED ? with_bare_spaces(text)
                                                                    : std::string(text));
  out.strings(key, texts);
}

// MTP layers that are not written (Config::draft_head) are not counted, and have no entries in
// lists with one for each layer.
void copy_metadata(GgufFileWriter& out, const GgufFile& gguf, const Config& c) {
  const std::string a = c.architecture + ".";
  if (const std::string key = a + "attention.key_length_mla"; c.latent && !gguf.has(key))
    unsupported(gguf.file.name, key, "none (the file has attn_kv_b)",
                "a number: take a newer GGUF file, or the folder, to quantise it");
  const int dropped = c.draft_head ? 0 : c.n_draft_layers;
  const bool sentencepiece = gguf.string("tokenizer.ggml.model") == "llama";
  for (const auto& [key, value] : gguf.metadata) {
    if (sentencepiece && key == "tokenizer.ggml.tokens") {
      copy_pieces(out, gguf, key);
      continue;
    }
    if (key.starts_with("split.") || key == "general.alignment" || key == "general.file_type" ||
        key == "general.quantization_version") {
      continue;
    }
    if (dropped > 0 && key == a + "nextn_predict_layers") continue;
    if (dropped > 0 && key == a + field::kLayers.gguf) {
      out.u32(key, static_cast<uint32_t>(c.n_layers));
      continue;
    }
    if (const auto listed = static_cast<uint64_t>(c.n_layers + dropped);
        dropped > 0 && value.type == GgufType::ARRAY && value.count == listed &&
        value.element != GgufType::STRING && key.starts_with(a)) {
      GgufValue fewer = value;
      fewer.count = static_cast<uint64_t>(c.n_layers);
      fewer.bytes = value.bytes / listed * fewer.count;
      out.value(key, fewer);
      continue;
    }
    out.value(key, value);
  }
}

}  // namespace

void rows_of(const Tensor& t, int64_t first, int64_t n, float* out) {
  if (!t.data) {
    t.source->values(t, first, n, out);
    return;
  }
  const int64_t bytes = row_bytes(t.type, t.cols);
  for (int64_t r = 0; r < n; ++r)
    cpu::dequant_blocks(t.type, static_cast<const uint8_t*>(t.data) + (first + r) * bytes, t.cols,
                        out + r * t.cols);
}

void quantize_weights(Model& model, const WeightMix& mix, int n_threads,
                      const LoadProgress& progress) {
  struct Job {
    NamedTensor tensor;
    DType type;
  };
  std::vector<Job> jobs;
  double total = 0;
  uint64_t taken = 0;
  // An MTP layer may have the model's own tables.
  DraftWeights& draft = model.weights.draft;
  const bool same_embedding = draft.embedding.data == model.weights.embedding.data,
             same_output = draft.output.data == model.weights.output.data;
  for (const NamedTensor& t : named_tensors(model)) {
    if (t.role == NamedTensor::VECTOR) continue;
    if (t.part_cols > 0) continue;  // only a few of its rows are ever read
    bool fallback = false;
    const DType type = type_in_mix(mix, t, model.config, &fallback);
    if (bits_of(type) >= bits_of(t.tensor->type)) continue;
    jobs.push_back({t, type});
    total += static_cast<double>(t.tensor->bytes());
    taken += static_cast<uint64_t>(t.tensor->rows * row_bytes(type, t.tensor->cols));
  }
  require_memory(std::string("weights converted to ") + mix.name, taken, MemoryLimits());
  Converter converter(model, n_threads, progress, total);
  for (const Job& job : jobs) {
    Tensor& t = *job.tensor.tensor;
    Buffer bytes(static_cast<size_t>(t.rows * row_bytes(job.type, t.cols)));
    size_t filled = 0;
    converter.matrix(job.tensor, job.type, {}, [&](const void* data, uint64_t n) {
      std::memcpy(bytes.as<std::byte>() + filled, data, n);
      filled += n;
    });
    model.weight_bytes -= static_cast<uint64_t>(t.bytes());
    t.type = job.type;
    t.data = bytes.data();
    model.weight_bytes += static_cast<uint64_t>(t.bytes());
    model.generated.push_back(std::move(bytes));
  }
  if (model.config.tied_output) model.weights.output = model.weights.embedding;
  if (same_embedding) draft.embedding = model.weights.embedding;
  if (same_output) draft.output = model.weights.output;
  const auto take_parts = [](LayerWeights& l) {
    take_rows(l.wqkv, {&l.wq, &l.wk, &l.wv});
    take_rows(l.w13, {&l.w1, &l.w3});
    take_rows(l.wkv_a, {&l.wv, &l.wk});
  };
  for (LayerWeights& l : model.weights.layers) take_parts(l);
  take_layer_projections(model.weights);
  take_parts(draft.layer);
}

ConversionSums write_weights(GgufFileWriter& out, Model& model, const WeightMix& mix, int n_threads,
                             const LoadProgress& progress) {
  out.u32("general.file_type", mix.file_type);
  out.u32("general.quantization_version", 2);
  const Config& c = model.config;
  const std::vector<NamedTensor> tensors = named_tensors(model);
  const std::vector<NamedFactors> factors = rope_factors_of(c);
  std::vector<DType> types;
  ConversionSums fallbacks;
  double total = 0;
  for (const NamedFactors& f : factors) out.tensor(f.name, DType::F32, {f.values.size()});
  for (const NamedTensor& t : tensors) {
    bool fallback = false;
    types.push_back(type_in_mix(mix, t, c, &fallback));
    fallbacks.n_fallback += fallback;
    total += static_cast<double>(t.tensor->bytes());
    if (t.part > 0) continue;  // the first one's tensor has room for it
    out.tensor(t.name, types.back(), file_shape(t));
  }
  out.begin();
  for (const NamedFactors& f : factors) out.write(f.values.data(), f.values.size() * sizeof(float));
  const bool reorder =
      !c.rope_interleaved && family_of_architecture(c.architecture)->rope_interleaved;
  Converter converter(model, n_threads, progress, total);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor& t = tensors[i];
    Order order;
    if (reorder && t.qk) order.head_dim = c.head_dim;
    const RecurrenceConfig& r = c.recurrence;
    if (t.v_size > 0 && !r.tiled && !r.ba_by_key && r.k_heads != r.v_heads)
      order = {0, r.k_heads, r.v_heads, t.v_first, t.v_size, t.v_columns};
    const Sink sink = [&](const void* data, uint64_t bytes) { out.write(data, bytes); };
    if (t.role == NamedTensor::VECTOR) converter.vector(t, order, sink);
    else converter.matrix(t, types[i], order, sink);
  }
  converter.sums.n_fallback = fallbacks.n_fallback;
  return converter.sums;
}

QuantizedFile quantize_file(const std::string& path, const std::string& out, const WeightMix& mix,
                            int n_threads, bool overwrite, const LoadProgress& progress) {
  if (out.find('\0') != std::string::npos)
    throw Error(RIFFLE_BAD_ARGUMENT, "output path: found a NUL, expected a file name");
  const std::string in = gguf_of_folder(path);
  const auto model = read_model(in, {});
  for (const auto& file : model->files) {
    if (file->is_same_file(out))
      throw Error(RIFFLE_BAD_ARGUMENT, out + ": this is the file that the model is read from");
  }
  GgufFileWriter writer(out, overwrite);
  if (is_folder(in)) {
    write_config(writer, model->config, in + "/config.json");
    write_vocabulary(writer, in, *model);
    if (!model->chat_template.empty()) writer.text("tokenizer.chat_template", model->chat_template);
  } else {
    const GgufParts parts = open_gguf(in);
    copy_metadata(writer, parts.gguf, model->config);
  }
  QuantizedFile result;
  result.n_params = model->n_params;
  result.weight_bytes_in = model->weight_bytes;
  result.sums = write_weights(writer, *model, mix, n_threads, progress);
  writer.finish();
  result.file_bytes = writer.file_bytes();
  result.weight_bytes_out = writer.weight_bytes();
  return result;
}

}  // namespace riffle
