#!/usr/bin/env python3
"""Memory of a long context for each attention-only family, from riffle's own memory plan.

    family_memory.py --riffle PATH [--folders DIR] [--context 131072] [--only WORD ...]
                     [--json FILE]
    family_memory.py --narrow --folders DIR

With --narrow it writes folders for family_peaks.py and prints no table: the same models with hidden
sizes and FFNs of 64, at most 16 experts and a vocabulary of 512.

For each model of MODELS the script makes a folder with the published config.json, a small
tokenizer and a model.safetensors that has the names and shapes of all tensors but no data. The
file is sparse: it has its full length and takes no disk space. transformers gives the names and
shapes, from a model on torch's meta device. Then the script runs `riffle info --plan --json` on
the folder and prints two Markdown tables.

The script compares the plan with formulas of its own. The KV of a layer is KV heads x head size x
2 (keys and values) x bytes x tokens, or one row a token with multi-head latent attention. A layer
that uses the KV of an earlier layer counts nothing. A layer with a sliding window counts the
blocks that the plan reserves for windows (src/kv/README.md, Windows).

The column "llama.cpp" is computed by the rules of llama.cpp b11434, not measured: a layer with a
window keeps window + micro-batch (512) tokens, rounded up to 256, and multi-head latent attention
keeps keys only. It is the KV alone, for one sequence.

Needs Python 3.11 with torch, transformers (5.24) and tokenizers. It uses no network. Without
--folders the folders are temporary. The exit code is 1 if riffle refuses a model on the CPU or if
a plan differs from the formulas.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

BLOCK = 16  # riffle's default number of tokens in a block
TAKE_BACK = KEY_TILE = 64  # riffle: Marks::kTakeBack and KvShape::kKeyTile
WINDOWS_KEPT = 4  # riffle: two marks, the end, and the end of a prompt that is being read
CODES_STEP = 1024  # riffle: the plan has key codes for a multiple of this number of tokens
MICRO_BATCH, PADDING = 512, 256  # llama.cpp: default n_ubatch, and GGML_PAD of both caches


@dataclasses.dataclass
class Model:
    name: str
    config: dict  # as in the published config.json, where it concerns the text part
    source: str  # letters of SOURCES


SOURCES = {
    "T": "defaults of the configuration class in transformers 5.24.0",
    "P": "a copy of the published config.json, or of its values, in a public repository",
    "G": "google-deepmind/gemma, gemma/gm/nn/gemma4/_gemma4.py",
    "L": "llama.cpp b11434, src/models (the number of layers)",
}


def types(pattern, n):
    """Layer types, from a pattern of f (full attention) and w (window) that repeats."""
    names = {"f": "full_attention", "w": "sliding_attention"}
    return [names[pattern[i % len(pattern)]] for i in range(n)]


def causal(kind, model_type, **config):
    return {"architectures": [kind + "ForCausalLM"], "model_type": model_type,
            "torch_dtype": "bfloat16", **config}


def gemma4(hidden, intermediate, layers, heads, kv_heads, global_kv_heads, pattern, window, length,
           **more):
    text = {
        "model_type": "gemma4_text", "attention_bias": False, "attention_k_eq_v": False,
        "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": False, "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": hidden,
        "hidden_size_per_layer_input": 0, "intermediate_size": intermediate,
        "layer_types": types(pattern, layers), "max_position_embeddings": length,
        "num_attention_heads": heads, "num_global_key_value_heads": global_kv_heads,
        "num_hidden_layers": layers, "num_key_value_heads": kv_heads, "num_kv_shared_layers": 0,
        "pad_token_id": 0, "rms_norm_eps": 1e-6, "sliding_window": window,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                               "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
        "tie_word_embeddings": True, "use_double_wide_mlp": False, "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144, **more}
    unified = text["model_type"] == "gemma4_unified_text"
    if unified:
        for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input"):
            del text[key]
    return {"architectures": [f"Gemma4{'Unified' * unified}ForConditionalGeneration"],
            "model_type": "gemma4_unified" if unified else "gemma4", "dtype": "bfloat16",
            "eos_token_id": [1, 106], "text_config": text, "tie_word_embeddings": True}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0,
         "mscale": 1.0, "mscale_all_dim": 1.0}

MODELS = [
    Model("Seed-OSS 36B", causal(
        "SeedOss", "seed_oss", attention_bias=True, attention_out_bias=False, bos_token_id=0,
        eos_token_id=2, pad_token_id=1, head_dim=128, hidden_act="silu", hidden_size=5120,
        intermediate_size=27648, max_position_embeddings=524288, mlp_bias=False,
        num_attention_heads=80, num_hidden_layers=64, num_key_value_heads=8, rms_norm_eps=1e-6,
        rope_scaling={"rope_type": "default"}, rope_theta=1e7, tie_word_embeddings=False,
        vocab_size=155136), "P"),
    Model("Laguna XS.2 33B-A3B", causal(
        "Laguna", "laguna", attention_bias=False, bos_token_id=2, eos_token_id=[2, 24],
        pad_token_id=9, gating=True, head_dim=128, hidden_act="silu", hidden_size=2048,
        intermediate_size=8192, layer_types=types("fwww", 40), max_position_embeddings=131072,
        mlp_layer_types=["dense"] + ["sparse"] * 39, moe_intermediate_size=512,
        moe_routed_scaling_factor=2.5, num_attention_heads=48,
        num_attention_heads_per_layer=[48, 64, 64, 64] * 10, num_experts=256,
        num_experts_per_tok=8, num_hidden_layers=40, num_key_value_heads=8, rms_norm_eps=1e-6,
        rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 32.0,
                               "original_max_position_embeddings": 4096, "beta_slow": 1.0,
                               "beta_fast": 64.0, "attention_factor": 1.0,
                               "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0,
                                  "partial_rotary_factor": 1.0},
            "original_max_position_embeddings": 4096},
        shared_expert_intermediate_size=512, sliding_window=512, tie_word_embeddings=False,
        vocab_size=100352), "TP"),
    Model("Mellum 2 12B-A2.5B", causal(
        "Mellum", "mellum", attention_bias=False, bos_token_id=0, eos_token_id=28, head_dim=128,
        hidden_act="silu", hidden_size=2304, intermediate_size=7168,
        layer_types=types("wwwf", 28), mlp_layer_types=["sparse"] * 28,
        max_position_embeddings=131072, moe_intermediate_size=896, norm_topk_prob=True,
        num_attention_heads=32, num_experts=64, num_experts_per_tok=8, num_hidden_layers=28,
        num_key_value_heads=4, rms_norm_eps=1e-6,
        rope_parameters={
            "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 16.0,
                               "original_max_position_embeddings": 8192, "beta_fast": 32.0,
                               "beta_slow": 1.0, "attention_factor": 1.2772588722239782},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}},
        sliding_window=1024, use_sliding_window=True, tie_word_embeddings=False,
        vocab_size=98304), "TP"),
    Model("K-EXAONE 236B-A23B", causal(
        "ExaoneMoE", "exaone_moe", bos_token_id=1, eos_token_id=53, pad_token_id=0,
        first_last_k_dense_replace=1, first_k_dense_replace=1, head_dim=128, hidden_act="silu",
        hidden_size=6144, intermediate_size=18432, is_moe_layer=[False] + [True] * 47,
        layer_types=types("wwwf", 48), max_position_embeddings=262144, moe_intermediate_size=2048,
        n_group=1, norm_topk_prob=True, num_attention_heads=64, num_experts=128,
        num_experts_per_tok=8, num_hidden_layers=48, num_key_value_heads=8, num_shared_experts=1,
        rms_norm_eps=1e-5, rope_scaling=None, rope_theta=1000000, routed_scaling_factor=2.5,
        scoring_func="sigmoid", sliding_window=128, sliding_window_pattern="LLLG",
        tie_word_embeddings=False, topk_group=1, vocab_size=153600), "PL"),
    Model("North Mini Code 30B-A3B", causal(
        "Cohere2Moe", "cohere2_moe", attention_bias=False, bos_token_id=2, eos_token_id=255001,
        expert_selection_fn="sigmoid", first_k_dense_replace=1, head_dim=128, hidden_act="silu",
        hidden_size=2048, intermediate_size=768, layer_norm_eps=1e-5,
        layer_types=types("fwww", 49), logit_scale=1.0, max_position_embeddings=500000,
        norm_topk_prob=False, num_attention_heads=32, num_experts=128, num_experts_per_tok=8,
        num_hidden_layers=49, num_key_value_heads=4, num_shared_experts=0, pad_token_id=0,
        prefix_dense_intermediate_size=3072, prefix_dense_sliding_window_pattern=1,
        rope_theta=50000, sliding_window=4096, sliding_window_pattern=4, tie_word_embeddings=True,
        vocab_size=262144), "P"),
    Model("Command R7B", causal(
        "Cohere2", "cohere2", attention_bias=False, bos_token_id=5, eos_token_id=255001,
        cache_implementation="hybrid", head_dim=128, hidden_act="silu", hidden_size=4096,
        intermediate_size=14336, layer_norm_eps=1e-5, layer_switch=4, logit_scale=0.25,
        max_position_embeddings=8192, num_attention_heads=32, num_hidden_layers=32,
        num_key_value_heads=8, order_of_interleaved_layers="local_attn_first", pad_token_id=0,
        position_embedding_type="rope_gptj", rope_scaling=None, rope_theta=50000, rotary_pct=1.0,
        sliding_window=4096, sliding_window_pattern=4, use_embedding_sharing=True,
        use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True,
        vocab_size=256000), "P"),
    Model("GLM-4 9B", causal(
        "Glm4", "glm4", attention_bias=True, eos_token_id=[151329, 151336, 151338],
        pad_token_id=151329, head_dim=128, hidden_act="silu", hidden_size=4096,
        intermediate_size=13696, max_position_embeddings=131072, num_attention_heads=32,
        num_hidden_layers=40, num_key_value_heads=2, partial_rotary_factor=0.5,
        rms_norm_eps=1.5625e-07, rope_theta=10000.0, tie_word_embeddings=False,
        vocab_size=151552), "T"),
    Model("GLM-4 32B", causal(
        "Glm4", "glm4", attention_bias=False, eos_token_id=[151329, 151336, 151338],
        pad_token_id=151329, head_dim=128, hidden_act="silu", hidden_size=6144,
        intermediate_size=23040, max_position_embeddings=32768, num_attention_heads=48,
        num_hidden_layers=61, num_key_value_heads=2, partial_rotary_factor=0.5, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False, vocab_size=151552), "P"),
    Model("ERNIE 4.5 0.3B", causal(
        "Ernie4_5", "ernie4_5", bos_token_id=1, eos_token_id=2, pad_token_id=0, head_dim=128,
        hidden_act="silu", hidden_size=1024, intermediate_size=3072,
        max_position_embeddings=131072, num_attention_heads=16, num_hidden_layers=18,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
        use_bias=False, vocab_size=103424), "T"),
    Model("ERNIE 4.5 21B-A3B", causal(
        "Ernie4_5_Moe", "ernie4_5_moe", bos_token_id=1, eos_token_id=2, pad_token_id=0,
        hidden_act="silu", hidden_size=2560, intermediate_size=12288,
        max_position_embeddings=131072, moe_intermediate_size=1536, moe_k=6,
        moe_layer_end_index=27, moe_layer_interval=1, moe_layer_start_index=1, moe_num_experts=64,
        moe_num_shared_experts=2, num_attention_heads=20, num_hidden_layers=28,
        num_key_value_heads=4, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
        use_bias=False, vocab_size=103424), "T"),
    Model("Hunyuan 7B", causal(
        "HunYuanDenseV1", "hunyuan_v1_dense", attention_bias=False, attention_head_dim=128,
        bos_token_id=1, eos_token_id=127960, eod_token_id=127967, pad_token_id=127961,
        head_dim=128, hidden_act="silu", hidden_size=4096, intermediate_size=14336,
        max_position_embeddings=32768, mlp_bias=False, num_attention_heads=32,
        num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-5, rope_scaling=ALPHA,
        rope_theta=10000.0, tie_word_embeddings=True, use_cla=False, use_qk_norm=True,
        vocab_size=128167), "P"),
    Model("Apertus 8B", causal(
        "Apertus", "apertus", attention_bias=False, bos_token_id=1, eos_token_id=68,
        pad_token_id=3, hidden_act="xielu", hidden_dropout=0.0, hidden_size=4096,
        intermediate_size=21504, max_position_embeddings=65536, mlp_bias=False,
        num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, post_norm=False,
        qk_norm=True, rms_norm_eps=1e-5, rope_scaling={**LLAMA3, "type": "llama3"},
        rope_theta=12000000, tie_word_embeddings=False, vocab_size=131072), "P"),
    Model("Granite Swash 2B", causal(
        "GraniteSWA", "granite_swa", attention_bias=False, attention_multiplier=0.0078125,
        bos_token_id=100257, eos_token_id=100257, pad_token_id=100256, embedding_multiplier=12,
        hidden_act="silu", hidden_size=2560, intermediate_size=8192,
        layer_types=types("fwww", 24), logits_scaling=10, max_position_embeddings=8192,
        mlp_bias=False, num_attention_heads=20, num_hidden_layers=24, num_key_value_heads=4,
        residual_multiplier=0.28, rms_norm_eps=1e-5, rope_theta=10000, sliding_window=128,
        tie_word_embeddings=True, vocab_size=100352), "TP"),
    Model("Muse Glimmer 30B", {
        "architectures": ["MuseGlimmerForConditionalGeneration"], "model_type": "muse_glimmer",
        "dtype": "bfloat16", "tie_word_embeddings": False, "text_config": {
            "model_type": "muse_glimmer_text", "attention_bias": False, "bos_token_id": 200000,
            "eos_token_id": 200001, "final_logit_softcapping": 20.0, "head_dim": 128,
            "hidden_activation": "silu", "hidden_size": 6656, "intermediate_size": 19968,
            "layer_rope_theta": [10000.0, 10000.0, 10000.0, 0] * 13,
            "layer_types": types("wwwf", 52), "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 2,
            "output_multiplier": 0.19611613513818404, "post_norm_eps": 1e-8,
            "qk_scale_factor": 3.87, "rms_norm_eps": 1e-5, "sliding_window": 2048,
            "tie_word_embeddings": False, "vocab_size": 202048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}, "T"),
    Model("Gemma 4 E2B", gemma4(
        1536, 6144, 35, 8, 1, None, "wwwwf", 512, 131072, hidden_size_per_layer_input=256,
        num_kv_shared_layers=20, use_double_wide_mlp=True), "G"),
    Model("Gemma 4 E4B", gemma4(
        2560, 10240, 42, 8, 2, None, "wwwwwf", 512, 131072, hidden_size_per_layer_input=256,
        num_kv_shared_layers=18), "G"),
    Model("Gemma 4 12B", gemma4(
        3840, 15360, 48, 16, 8, 1, "wwwwwf", 1024, 262144, attention_k_eq_v=True,
        model_type="gemma4_unified_text"), "P"),
    Model("Gemma 4 26B-A4B", gemma4(
        2816, 2112, 30, 16, 8, 2, "wwwwwf", 1024, 262144, attention_k_eq_v=True,
        enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=704), "G"),
    Model("Gemma 4 31B", gemma4(
        5376, 21504, 60, 32, 16, 4, "wwwwwf", 1024, 262144, attention_k_eq_v=True), "G"),
    Model("GLM-4.7-Flash", causal(
        "Glm4MoeLite", "glm4_moe_lite", attention_bias=False, bos_token_id=0, eos_token_id=1,
        first_k_dense_replace=1, hidden_act="silu", hidden_size=2048, intermediate_size=10240,
        kv_lora_rank=512, max_position_embeddings=202752,
        mlp_layer_types=["dense"] + ["sparse"] * 46, moe_intermediate_size=1536, n_group=1,
        n_routed_experts=64, n_shared_experts=1, norm_topk_prob=True, num_attention_heads=20,
        num_experts_per_tok=4, num_hidden_layers=47, num_key_value_heads=20, q_lora_rank=768,
        qk_nope_head_dim=192, qk_rope_head_dim=64, rms_norm_eps=1e-5, rope_interleave=True,
        rope_theta=1000000.0, routed_scaling_factor=1.8, tie_word_embeddings=False,
        topk_group=1, topk_method="noaux_tc", v_head_dim=256, vocab_size=154880), "T"),
    Model("DeepSeek-V2-Lite 16B", causal(
        "DeepseekV2", "deepseek_v2", attention_bias=False, aux_loss_alpha=0.001,
        bos_token_id=100000, eos_token_id=100001, ep_size=1, first_k_dense_replace=1,
        hidden_act="silu", hidden_size=2048, intermediate_size=10944, kv_lora_rank=512,
        max_position_embeddings=163840, moe_intermediate_size=1408, moe_layer_freq=1, n_group=1,
        n_routed_experts=64, n_shared_experts=2, norm_topk_prob=False, num_attention_heads=16,
        num_experts_per_tok=6, num_hidden_layers=27, num_key_value_heads=16, q_lora_rank=None,
        qk_nope_head_dim=128, qk_rope_head_dim=64, rms_norm_eps=1e-6,
        rope_scaling={"type": "yarn", "beta_fast": 32, "beta_slow": 1, "factor": 40,
                      "mscale": 0.707, "mscale_all_dim": 0.707,
                      "original_max_position_embeddings": 4096},
        rope_theta=10000, routed_scaling_factor=1.0, scoring_func="softmax",
        tie_word_embeddings=False, topk_group=1, topk_method="greedy", v_head_dim=128,
        vocab_size=102400), "P"),
]


# ---- folders ------------------------------------------------------------------------------------

def text_config(config):
    return config.get("text_config", config)


def tensors_of(folder, config):
    """Returns name and shape of each tensor of the text part, named as in published files."""
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion
    nested = "text_config" in config
    kind = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    whole = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = kind.from_config(whole)
    state = revert_weight_conversion(model, model.state_dict())
    tied = config.get("tie_word_embeddings", whole.tie_word_embeddings)
    if tied:  # saved files then have no output matrix
        state.pop("lm_head.weight", None)
    return {name: list(tensor.shape) for name, tensor in state.items()
            if not nested or "language_model." in name or name.startswith("lm_head.")}


def write_sparse(path, shapes):
    """Writes the header of a safetensors file of BF16 tensors, and its length without data."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def write_tokenizer(path):
    """Writes a vocabulary of the 256 bytes. It may be smaller than the model's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


WIDTHS = {"intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size",
          "prefix_dense_intermediate_size", "hidden_size_per_layer_input", "q_lora_rank"}
COUNTS = {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"}
TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id", "eod_token_id"}


def narrow(config):
    """Returns the configuration with small weights, and with the layers, heads and windows as they
    are. If it has no head size, that is hidden_size / heads, so hidden_size stays. So it does for
    cohere2, for whose head size llama.cpp has no key."""
    small = json.loads(json.dumps(config))
    c = text_config(small)
    if ("head_dim" in c or "kv_lora_rank" in c) and c["model_type"] != "cohere2":
        c["hidden_size"] = 64
    for key in c:
        if key in WIDTHS and c[key]:
            c[key] = 64
        elif key in COUNTS and c[key]:
            c[key] = min(c[key], 16)
        elif key.startswith("vocab_size"):
            c[key] = 512
        elif key in TOKENS and c[key] is not None:
            c[key] = 511  # the tokenizer has 256 tokens, so the model never ends its answer
    return small


def models_named(words):
    """Returns the models whose name has one of the words; all if there are none."""
    return [m for m in MODELS if not words or any(word in m.name for word in words)]


def folder_of(folders, model):
    return folders / model.name.replace(" ", "-")


def make_folder(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder / "tokenizer.json")
    write_sparse(folder / "model.safetensors", tensors_of(folder, config))


# ---- formulas -----------------------------------------------------------------------------------

@dataclasses.dataclass
class Layer:
    """A layer keeps n_heads keys of `size` values for each token and, unless latent, values too."""
    n_heads: int
    size: int
    window: int  # 0: full attention
    latent: bool = False


def layers_of(config):
    """Returns the layers that keep KV. A layer that uses an earlier layer's KV is left out."""
    c = text_config(config)
    n = c["num_hidden_layers"]
    if "kv_lora_rank" in c:
        return [Layer(1, c["kv_lora_rank"] + c["qk_rope_head_dim"], 0, True)] * n
    kinds = c.get("layer_types")
    if kinds is None:
        period = c.get("sliding_window_pattern")
        kinds = types("w" * (period - 1) + "f", n) if period else types("f", n)
    size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    layers = []
    for kind in kinds[:n - c.get("num_kv_shared_layers", 0)]:
        if kind == "sliding_attention":
            layers.append(Layer(c["num_key_value_heads"], size, c["sliding_window"]))
        else:
            heads = c.get("num_global_key_value_heads") or c["num_key_value_heads"]
            layers.append(Layer(heads, c.get("global_head_dim", size), 0))
    return layers


def token_bytes(layer, kv):
    """Returns the bytes of one token in one layer. q8: a byte a value, and one for 32 values."""
    row = 2 * layer.size if kv == "f16" else layer.size + -(-layer.size // 32)
    return layer.n_heads * row * (1 if layer.latent else 2)


def block_bytes(layer, kv):
    """Returns the bytes of a block of each head of the layer; each begins on a cache line."""
    return layer.n_heads * (-(-token_bytes(layer, kv) // layer.n_heads * BLOCK // 64) * 64)


def planned_blocks(layer, context):
    """Blocks for which riffle's plan has room: all, or the windows that it may have to keep."""
    whole = -(-context // BLOCK)
    if not layer.window:
        return whole
    return min(whole, WINDOWS_KEPT * ((layer.window + TAKE_BACK + KEY_TILE) // BLOCK + 2))


def formula(layers, context, kv):
    return sum(planned_blocks(x, context) * block_bytes(x, kv) for x in layers)


def least(layers, context):
    """KV in f16 if a layer with a window kept exactly its window."""
    return sum(min(context, x.window or context) * token_bytes(x, "f16") for x in layers)


def index_formula(layers, context):
    """The key codes of selector share: 2 bits a value, and sums, of layers without a window."""
    context = -(-context // CODES_STEP) * CODES_STEP
    total = 0
    for x in layers:
        if not x.window:
            size = -(-x.size // 16) * 16
            total += x.n_heads * (context * (size // 4 + 2) + context // BLOCK * (size + 4))
    return total


def llama_cpp(layers, context):
    """f16 KV of one sequence by llama_kv_cache_iswa and llama_kv_cache of llama.cpp b11434."""
    def padded(n):
        return -(-n // PADDING) * PADDING

    base = padded(context)
    total = 0
    for x in layers:
        cells = padded(min(base, x.window + MICRO_BATCH)) if x.window else base
        total += cells * token_bytes(x, "f16")
    return total


# ---- plans --------------------------------------------------------------------------------------

def plan(riffle, folder, context, *flags):
    """Returns what riffle info prints as JSON, or the text of its error."""
    command = [riffle, "info", "-m", str(folder), "--plan", "-c", str(context), "--json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return f"{' '.join(flags)}: exit code {done.returncode}: {done.stderr.strip()}"


RUNS = {"f16": ("--device", "cpu"), "q8": ("--device", "cpu", "--kv", "q8"),
        "share": ("--device", "cpu", "--selector", "share"),
        "emu": ("--device", "emu", "--gpu-mem", "24G")}


def measure(riffle, folder, model, context):
    """Returns the figures of a model. "wrong" lists refusals and differences."""
    layers = layers_of(model.config)
    row = {"name": model.name, "source": model.source, "layers": layers, "wrong": [],
           "least": least(layers, context), "llama.cpp": llama_cpp(layers, context)}
    for key, flags in RUNS.items():
        found = plan(riffle, folder, context, *flags)
        if isinstance(found, str):
            row["wrong"].append(found)
            continue
        row |= {key: found["plan"], "bytes": found["weight_bytes"], "params": found["n_params"]}
        # The weights are BF16, so most models do not fit the emulated GPU. That is no fault.
        if found["plan"]["error"] and key != "emu":
            row["wrong"].append(f"{' '.join(flags)}: {found['plan']['error']}")
    expected = {("f16", "host_kv"): formula(layers, context, "f16"),
                ("q8", "host_kv"): formula(layers, context, "q8"),
                ("share", "selector_state"): index_formula(layers, context)}
    for (key, field), value in expected.items():
        if key in row and row[key][field] != value:
            row["wrong"].append(f"{key} {field}: plan {row[key][field]}, formula {value}")
    return row


# ---- tables -------------------------------------------------------------------------------------

def gib(n):
    return f"{n / 2**30:.2f}"


def describe(layers, windowed):
    """Returns the layers with or without a window, by kind, such as "30 of 8 x 128, 512"."""
    count = {}
    for x in layers:
        if (x.window > 0) == windowed:
            kind = f"{x.n_heads} x {x.size}"
            kind += f", {x.window:,}" if windowed else ", latent" if x.latent else ""
            count[kind] = count.get(kind, 0) + 1
    return "; ".join(f"{n} of {kind}" for kind, n in count.items())


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def kv_table(rows):
    head = ["model", "layers that keep all tokens", "layers with a window, tokens",
            "formula, exact windows", "plan, f16", "plan, `--kv q8`", "index", "llama.cpp, f16",
            "plan / llama.cpp"]
    cells = []
    for r in rows:
        kv = r["f16"]["host_kv"]
        cells.append([r["name"], describe(r["layers"], False), describe(r["layers"], True),
                      gib(r["least"]), gib(kv), gib(r["q8"]["host_kv"]),
                      gib(r["share"]["selector_state"]), gib(r["llama.cpp"]),
                      f"{kv / r['llama.cpp']:.2f}"])
    return table(head, cells)


def rest_table(rows):
    head = ["model", "sizes from", "parameters, 10^9", "weights, BF16", "default selector",
            "activations, CPU", "KV, index and activations, CPU",
            "emulated GPU: least `--gpu-mem`", "of it besides weights"]
    cells = []
    for r in rows:
        cpu, emu = r["f16"], r["emu"]
        besides = cpu["total"] - cpu["weights"] + cpu["host_kv"] + cpu["selector_state"]
        cells.append([r["name"], ", ".join(r["source"]), f"{r['params'] / 1e9:.1f}",
                      gib(r["bytes"]), cpu["selector"], gib(cpu["activations"]), gib(besides),
                      gib(emu["min_gpu_mem"]), gib(emu["min_gpu_mem"] - emu["weights"])])
    return table(head, cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--riffle", help="the riffle executable; required without --narrow")
    parser.add_argument("--folders", type=pathlib.Path, help="where the folders go, and stay")
    parser.add_argument("--context", type=int, default=131072, help="tokens, more than 4096")
    parser.add_argument("--only", nargs="*", default=[], help="words in names of models")
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures to this file")
    parser.add_argument("--narrow", action="store_true",
                        help="write small folders for family_peaks.py, without --riffle")
    args = parser.parse_args()
    if args.context <= 4096:
        parser.error("--context: expected more tokens than the longest window, 4096")
    if args.narrow != (args.riffle is None) or (args.narrow and args.folders is None):
        parser.error("expected either --riffle PATH, or --narrow and --folders DIR")
    if args.narrow:
        for model in models_named(args.only):
            make_folder(folder_of(args.folders, model), narrow(model.config))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in models_named(args.only):
            folder = folder_of(args.folders or pathlib.Path(temporary), model)
            make_folder(folder, model.config)
            rows.append(measure(args.riffle, folder, model, args.context))
            print(f"{model.name}: done", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1, default=dataclasses.asdict))
    whole = [r for r in rows if all(key in r for key in RUNS)]
    print(f"GiB, {args.context:,} tokens:\n\n{kv_table(whole)}\n\n{rest_table(whole)}\n")
    print("Sizes from: " + "; ".join(f"{k} {v}" for k, v in SOURCES.items()) + ".\n")
    for r in rows:
        for text in r["wrong"]:
            print(f"- {r['name']}: {text}")
    wrong = sum(bool(r["wrong"]) for r in rows)
    print(f"{len(rows) - wrong} of {len(rows)} models: plan and formulas are equal to the byte.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
