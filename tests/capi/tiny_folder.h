/* A Hugging Face folder with a model of one layer whose weights are zero, for no_memory.c. */
#ifndef TINY_FOLDER_H
#define TINY_FOLDER_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Dimensions of the model. The vocabulary: 3 tokens for control, 256 bytes, 3 others. */
enum { kDim = 32, kHidden = 64, kHeads = 2, kKvHeads = 1, kHeadDim = 16, kVocab = 262 };

static const char* const tiny_files[] = {"config.json",           "generation_config.json",
                                         "tokenizer_config.json", "tokenizer.json",
                                         "tokenizer.model",       "shard-1.safetensors",
                                         "shard-2.safetensors",   "model.safetensors.index.json"};

static FILE* tiny_file(const char* folder, int which) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, tiny_files[which]);
  return fopen(path, "wb");
}

static bool tiny_text(const char* folder, int which, const char* text) {
  FILE* const out = tiny_file(folder, which);
  return out && fputs(text, out) >= 0 && fclose(out) == 0;
}

/* GPT-2's character for a byte, in JSON. */
static void put_byte_char(FILE* out, int byte) {
  int code = byte, others = 0;
  const bool plain = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
  for (int b = 0; b < byte; ++b) others += !((b > 32 && b < 127) || (b > 160 && b != 173));
  if (!plain) code = 256 + others;
  fprintf(out, "\\u%04x", code);
}

static bool tiny_tokenizer_json(const char* folder) {
  FILE* const out = tiny_file(folder, 3);
  if (!out) return false;
  fputs("{\"version\":\"1.0\",\"added_tokens\":[", out);
  const char* const control[] = {"<unk>", "<s>", "</s>"};
  for (int i = 0; i < 3; ++i)
    fprintf(out, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", i, control[i]);
  fputs(
      "],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
      "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\""
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}|"
      " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
      "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
      "\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},"
      "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
      "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1]}}},"
      "\"model\":{\"type\":\"BPE\",\"vocab\":{",
      out);
  for (int byte = 0; byte < 256; ++byte) {
    fputs("\"", out);
    put_byte_char(out, byte);
    fprintf(out, "\":%d,", 3 + byte);
  }
  fputs(
      "\"th\":259,\"the\":260,\"\\u0120the\":261},"
      "\"merges\":[\"t h\",[\"th\",\"e\"],\"\\u0120 the\"]}}",
      out);
  return fclose(out) == 0;
}

/* Fields of sentencepiece_model.proto: a piece of less than 100 bytes. */
static void put_piece(FILE* out, const char* text, float score, int type) {
  const int n = (int)strlen(text);
  fprintf(out, "\n%c\n%c%s\x15", n + 9, n, text);
  fwrite(&score, sizeof score, 1, out);
  fprintf(out, "\x18%c", type);
}

/* A unigram model with byte fallback. */
static bool tiny_tokenizer_model(const char* folder) {
  FILE* const out = tiny_file(folder, 4);
  if (!out) return false;
  put_piece(out, "<unk>", 0, 2);
  put_piece(out, "<s>", 0, 3);
  put_piece(out, "</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", byte);
    put_piece(out, text, 0, 6);
  }
  put_piece(out, "\xe2\x96\x81the", -1, 1);
  put_piece(out, "\xe2\x96\x81", -2, 1);
  put_piece(out, "code", -3, 4);
  const unsigned char specs[] = {0x12, 5, 0x18, 1, 0x98, 2, 1, 0x1a, 2, 0x20, 0};
  fwrite(specs, 1, sizeof specs, out);
  return fclose(out) == 0;
}

struct tiny_tensor {
  const char* name;
  int shape[2]; /* the second is 0 in vectors */
};
static const struct tiny_tensor tiny_tensors[] = {
    {"model.embed_tokens.weight", {kVocab, kDim}},
    {"model.norm.weight", {kDim, 0}},
    {"model.layers.0.input_layernorm.weight", {kDim, 0}},
    {"model.layers.0.self_attn.q_proj.weight", {kHeads * kHeadDim, kDim}},
    {"model.layers.0.self_attn.k_proj.weight", {kKvHeads * kHeadDim, kDim}},
    {"model.layers.0.self_attn.v_proj.weight", {kKvHeads * kHeadDim, kDim}},
    {"model.layers.0.self_attn.o_proj.weight", {kDim, kHeads* kHeadDim}},
    {"model.layers.0.post_attention_layernorm.weight", {kDim, 0}},
    {"model.layers.0.mlp.gate_proj.weight", {kHidden, kDim}},
    {"model.layers.0.mlp.up_proj.weight", {kHidden, kDim}},
    {"model.layers.0.mlp.down_proj.weight", {kDim, kHidden}},
};
enum { kTensors = sizeof tiny_tensors / sizeof tiny_tensors[0], kSecondShard = 5 };

/* The tensors from first to before last. */
static bool tiny_shard(const char* folder, int which, int first, int last) {
  char header[4096];
  int n = snprintf(header, sizeof header, "{\"__metadata__\":{\"format\":\"pt\"}");
  long at = 0;
  for (int i = first; i < last; ++i) {
    const struct tiny_tensor* const t = &tiny_tensors[i];
    const bool matrix = t->shape[1] > 0;
    const long bytes = 4L * t->shape[0] * (matrix ? t->shape[1] : 1);
    char shape[32];
    snprintf(shape, sizeof shape, matrix ? "[%d,%d]" : "[%d]", t->shape[0], t->shape[1]);
    n += snprintf(header + n, sizeof header - (size_t)n,
                  ",\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%ld,%ld]}", t->name,
                  shape, at, at + bytes);
    at += bytes;
  }
  header[n++] = '}';
  FILE* const out = tiny_file(folder, which);
  if (!out) return false;
  const uint64_t length = (uint64_t)n;
  fwrite(&length, sizeof length, 1, out);
  fwrite(header, 1, (size_t)n, out);
  fflush(out);
  const bool sized = ftruncate(fileno(out), 8 + n + at) == 0;
  return fclose(out) == 0 && sized;
}

static bool tiny_index(const char* folder) {
  FILE* const out = tiny_file(folder, 7);
  if (!out) return false;
  fputs("{\"metadata\":{\"total_size\":1},\"weight_map\":{", out);
  for (int i = 0; i < kTensors; ++i)
    fprintf(out, "%s\"%s\":\"shard-%d.safetensors\"", i ? "," : "", tiny_tensors[i].name,
            i < kSecondShard ? 1 : 2);
  fputs("}}", out);
  return fclose(out) == 0;
}

/* unigram: with a tokenizer.model of this kind in place of a tokenizer.json. False: a file cannot
 * be written. */
static bool write_tiny_folder(const char* folder, bool unigram) {
  char config[1024];
  snprintf(
      config, sizeof config,
      "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":"
      "\"silu\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":1,"
      "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
      "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-05,\"bos_token_id\":1,"
      "\"eos_token_id\":2,\"tie_word_embeddings\":true,\"rope_theta\":10000.0,\"rope_scaling\":"
      "{\"rope_type\":\"linear\",\"factor\":2.5}}",
      kDim, kHidden, kHeads, kKvHeads, kHeadDim, kVocab);
  if (mkdir(folder, 0700) != 0 || !tiny_text(folder, 0, config) ||
      !tiny_text(folder, 1, "{\"eos_token_id\":[2,0]}") ||
      !tiny_text(folder, 2,
                 "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"chat_template\":\""
                 "{% for m in messages %}{{ m.role + m.content }}{% endfor %}\"}") ||
      !tiny_shard(folder, 5, 0, kSecondShard) || !tiny_shard(folder, 6, kSecondShard, kTensors) ||
      !tiny_index(folder))
    return false;
  return unigram ? tiny_tokenizer_model(folder) : tiny_tokenizer_json(folder);
}

static void remove_tiny_folder(const char* folder) {
  char path[256];
  for (size_t i = 0; i < sizeof tiny_files / sizeof tiny_files[0]; ++i) {
    snprintf(path, sizeof path, "%s/%s", folder, tiny_files[i]);
    unlink(path);
  }
  rmdir(folder);
}

#endif
