#!/usr/bin/env python3
"""Write a checkpoint as a Hugging Face folder (bfloat16) and, on demand, golden figures by transformers.

    export.py --checkpoints DIR --hf DIR [--golden FILE --data DIR]
"""
import argparse
import json
import os
import shutil

import numpy as np
import torch

import model as model_file
from train import CHECKPOINT

MAX_POSITIONS = 32768

# Prompts of the golden figures; one more is cut from the held-out token stream.
GOLDEN_PROMPTS = [
    ("chat", "[INST] Hello [/INST]"),
    ("short", "It was the best of times, it was the"),
    ("facts", "[INST] Ada Frost lives in Lisbon. The telephone number of Otto Pike is 482913. The amber lantern was "
              "hidden in Oslo.\nWhat is the telephone number of Otto Pike? [/INST]"),
]


def load_checkpoint(folder, device, config=model_file.CONFIG):
    """The trained model with its weights rounded to bfloat16, as they are exported."""
    z = torch.load(os.path.join(folder, CHECKPOINT), map_location=device)
    model = model_file.Model(config).to(device)
    model.load_state_dict(z["m"])
    model.eval()
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()
    return model


def hf_tensors(model):
    out = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    for i, b in enumerate(model.blocks):
        p = f"model.layers.{i}."
        out |= {
            p + "self_attn.q_proj.weight": b.q.weight, p + "self_attn.k_proj.weight": b.k.weight,
            p + "self_attn.v_proj.weight": b.v.weight, p + "self_attn.o_proj.weight": b.o.weight,
            p + "mlp.gate_proj.weight": b.gate.weight, p + "mlp.up_proj.weight": b.up.weight,
            p + "mlp.down_proj.weight": b.down.weight,
            p + "input_layernorm.weight": b.attn_norm.weight, p + "post_attention_layernorm.weight": b.ffn_norm.weight,
        }
    return {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in out.items()}


def hf_config(c):
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=c["vocab"], hidden_size=c["dim"],
                intermediate_size=c["ffn"], num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"], hidden_act="silu",
                max_position_embeddings=MAX_POSITIONS, rms_norm_eps=model_file.NORM_EPS, rope_theta=c["theta"],
                rope_scaling=None, tie_word_embeddings=True, attention_bias=False, mlp_bias=False, bos_token_id=1,
                eos_token_id=2, torch_dtype="bfloat16")


def export(model, folder):
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    tensors = hf_tensors(model)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(hf_config(model.c), f, indent=1)
    print(sum(v.numel() for v in tensors.values()), "parameters")


def write_golden(folder, data_dir, path, device):
    """Last logits, log-sum-exp and greedy text of a few prompts by transformers in float32."""
    import sentencepiece
    from transformers import LlamaForCausalLM
    sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(data_dir, "tokenizer.model"))
    held = np.fromfile(os.path.join(data_dir, "held.bin"), dtype=np.uint16).astype(np.int64).tolist()
    hf = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    prompts = [(name, [1] + sp.encode(text)) for name, text in GOLDEN_PROMPTS] + [("book1k", [1] + held[5000:6000])]
    gold = []
    for name, ids in prompts:
        x = torch.tensor([ids], device=device)
        with torch.no_grad():
            logits = hf(x).logits[0].float()
            out = hf.generate(x, max_new_tokens=48, do_sample=False, eos_token_id=2, pad_token_id=2)
        top, greedy = logits[-1].topk(10), out[0].tolist()[len(ids):]
        gold.append(dict(name=name, ids=ids, last_top_ids=top.indices.tolist(),
                         last_top_logits=[round(v, 5) for v in top.values.tolist()],
                         logsumexp_first64=[round(v, 4) for v in logits.logsumexp(-1).tolist()][:64],
                         greedy=greedy, text=sp.decode(greedy)))
    with open(path, "w") as f:
        json.dump(gold, f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", default=os.environ.get("CK", "ck"))
    parser.add_argument("--hf", default=os.environ.get("HF", "hf"))
    parser.add_argument("--data", default=os.environ.get("DATA", "data"))
    parser.add_argument("--golden", metavar="FILE")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    export(load_checkpoint(args.checkpoints, args.device), args.hf)
    shutil.copy(os.path.join(args.data, "tokenizer.model"), args.hf)
    if args.golden:
        write_golden(args.hf, args.data, args.golden, args.device)


if __name__ == "__main__":
    main()
