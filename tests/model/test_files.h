// Makes tiny model files of both formats while tests run, and writes files to a folder that goes
// away again. Weights are k/128 with |k| <= 127, which F32, F16, BF16 and Q8_0 (scale 1/128) all
// hold exactly, so that a test may compare formats for equality.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model.h"
#include "text/tokenizer.h"

namespace riffle::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "riffle-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& content);

std::string read_file(const std::string& path);

template <class T>
void put(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

// Any GGUF file, also one that contradicts itself: what is said is written, nothing is checked.
class GgufWriter {
 public:
  void raw(const std::string& key, uint32_t type, const std::string& value) {
    string(keys_, key);
    put<uint32_t>(keys_, type);
    keys_ += value;
    ++n_keys;
  }
  template <class T>
  void scalar(const std::string& key, uint32_t type, T value) {
    std::string bytes;
    put(bytes, value);
    raw(key, type, bytes);
  }
  void u32(const std::string& key, uint32_t value) { scalar(key, 4, value); }
  void f32(const std::string& key, float value) { scalar(key, 6, value); }
  void boolean(const std::string& key, bool value) { scalar<uint8_t>(key, 7, value); }
  void text(const std::string& key, const std::string& value) {
    std::string bytes;
    string(bytes, value);
    raw(key, 8, bytes);
  }
  void strings(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = array_head(8, values.size());
    for (const auto& value : values) string(bytes, value);
    raw(key, 9, bytes);
  }
  template <class T>
  void array(const std::string& key, uint32_t element, const std::vector<T>& values) {
    std::string bytes = array_head(element, values.size());
    for (const T value : values) put(bytes, value);
    raw(key, 9, bytes);
  }
  static std::string array_head(uint32_t element, uint64_t count) {
    std::string bytes;
    put(bytes, element);
    put(bytes, count);
    return bytes;
  }
  // dims: row length first, as GGUF writes them. Data is placed where the tensor before ended,
  // aligned.
  void tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
              const std::string& data) {
    data_.resize((data_.size() + 31) / 32 * 32);
    tensor_info(name, dims, type, data_.size());
    data_ += data;
  }
  void tensor_info(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                   uint64_t offset) {
    string(infos_, name);
    put<uint32_t>(infos_, static_cast<uint32_t>(dims.size()));
    for (const uint64_t n : dims) put(infos_, n);
    put(infos_, type);
    put(infos_, offset);
    ++n_tensors;
  }
  std::string bytes() const {
    std::string out = "GGUF";
    put(out, version);
    put(out, n_tensors);
    put(out, n_keys);
    out += keys_ + infos_;
    if (n_tensors > 0 && !data_.empty()) out.resize((out.size() + 31) / 32 * 32);
    return out + data_;
  }

  uint32_t version = 3;
  uint64_t n_tensors = 0, n_keys = 0;

 private:
  static void string(std::string& out, const std::string& text) {
    put<uint64_t>(out, text.size());
    out += text;
  }
  std::string keys_, infos_, data_;
};

class SafetensorsWriter {
 public:
  void tensor(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
              const std::string& data) {
    std::string dims;
    for (const uint64_t n : shape) dims += (dims.empty() ? "" : ",") + std::to_string(n);
    header_ += (header_.empty() ? "" : ",") +
               ("\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + dims) +
               "],\"data_offsets\":[" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + data.size()) + "]}";
    data_ += data;
  }
  std::string bytes() const { return with_header("{" + header_ + "}", data_); }
  static std::string with_header(const std::string& header, const std::string& data) {
    std::string out;
    put<uint64_t>(out, header.size());
    return out + header + data;
  }

 private:
  std::string header_, data_;
};

// x = k/128 in any type.
std::string encode(DType type, const std::vector<float>& values);

uint32_t ggml_type(DType type);

// A random Llama, tensors by their Hugging Face names.
struct TinyModel {
  Config config;
  std::vector<VocabPiece> pieces;
  std::string chat_template = "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]";
  struct Matrix {
    std::vector<uint64_t> shape;  // outermost first
    std::vector<float> values;
  };
  std::map<std::string, Matrix> tensors;
};

std::vector<VocabPiece> tiny_vocab();

TinyModel tiny_model(uint32_t seed, bool tied = false, int n_layers = 2);

// post_norms: post_attention_layernorm is behind attention, not before the FFN.
std::string gguf_name(const std::string& hf, bool post_norms = false);

// Row of a Hugging Face wq or wk that GGUF keeps at row r: pairs (i, i + head_dim/2) become
// neighbours.
uint64_t unpermuted_row(uint64_t r, uint64_t head_dim);

TinyModel::Matrix permuted(const TinyModel::Matrix& m, uint64_t head_dim);

// All metadata of tiny, without tensors; tests add or spoil some more.
void add_tiny_keys(GgufWriter& w, const TinyModel& tiny, const std::string& leave_out = "");

void add_tiny_tensors(GgufWriter& w, const TinyModel& tiny, DType type,
                      const std::string& leave_out = "");

std::string tiny_gguf(const TinyModel& tiny, DType type);

// A sentencepiece ModelProto with these pieces (fields of sentencepiece_model.proto, BPE with byte
// fallback).
std::string tiny_sentencepiece(const std::vector<VocabPiece>& pieces);

std::string tiny_config_json(const TinyModel& tiny, const std::string& more = "");

// n_shards 0: one model.safetensors.
void write_tiny_folder(const std::string& folder, const TinyModel& tiny, DType type,
                       int n_shards = 0);

}  // namespace riffle::test
