// The GGUF file of a tiny checkpoint, with keys and tensors that a test changes after it was read.
#pragma once
#include <deque>

#include "formats/gguf.h"
#include "import/load_model.h"
#include "tests/engine/tiny_checkpoint.h"

namespace riffle::test {

class EditedGguf {
 public:
  explicit EditedGguf(const TinyCheckpoint& c) : bytes_(tiny_gguf(c)) {
    gguf_ = parse_gguf({reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size(), "e.gguf"});
  }
  explicit EditedGguf(const std::string& checkpoint) : EditedGguf(tiny_checkpoint(checkpoint)) {}
  EditedGguf(const EditedGguf&) = delete;
  EditedGguf& operator=(const EditedGguf&) = delete;

  void f32(const std::string& key, float value) { put_value(key, GgufType::F32, value); }
  void u32(const std::string& key, uint32_t value) { put_value(key, GgufType::U32, value); }
  void boolean(const std::string& key, bool value) {
    put_value(key, GgufType::BOOL, static_cast<uint8_t>(value));
  }
  void text(const std::string& key, const std::string& value) {
    gguf_.metadata[key] = {GgufType::STRING, GgufType::U8, 1, keep(value), value.size()};
  }
  template <class T>
  void array(const std::string& key, GgufType element, const std::vector<T>& values) {
    std::string data;
    for (const T value : values) put(data, value);
    gguf_.metadata[key] = {GgufType::ARRAY, element, values.size(), keep(data), data.size()};
  }
  void erase(const std::string& key) { gguf_.metadata.erase(key); }
  void erase_tensor(const std::string& name) { gguf_.tensors.erase(name); }
  void floats(const std::string& tensor, const std::vector<float>& values) {
    std::string data;
    for (const float value : values) put(data, value);
    bytes(tensor, DType::F32, {values.size()}, data);
  }
  void bytes(const std::string& tensor, DType type, const std::vector<uint64_t>& shape,
             const std::string& data) {
    gguf_.tensors[tensor] = {"e.gguf", dtype_info(type).name, type, shape, keep(data), data.size()};
  }

  std::unique_ptr<Model> model() const { return model_from_gguf(gguf_, {}); }
  Config config() const { return model()->config; }

 private:
  template <class T>
  void put_value(const std::string& key, GgufType type, T value) {
    std::string data;
    put(data, value);
    gguf_.metadata[key] = {type, GgufType::U8, 1, keep(data), data.size()};
  }
  const uint8_t* keep(const std::string& data) {
    return reinterpret_cast<const uint8_t*>(kept_.emplace_back(data).data());
  }
  std::string bytes_;
  std::deque<std::string> kept_;
  GgufFile gguf_;
};

}  // namespace riffle::test
