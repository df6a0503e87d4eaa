#!/usr/bin/env python3
"""Makes a golden folder (config.json, model.safetensors, golden.safetensors), or checks one that is stored.

    model.py OUT --type qwen3 [--set KEY=VALUE]... [--float32]
    model.py OUT --config config.json [--float32]
    model.py --check FOLDER
"""
import argparse
import os
import sys

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny

N_PROMPT, N_GREEDY = 48, 16


def randomize(model, dtype):
    """Every tensor gets new values, rounded to the type they are stored in: logits then belong to exactly these."""
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            base, spread = tiny.spread_of(name, tensor)
            values = torch.rand(tensor.shape, generator=gen) * (2 * spread) + (base - spread)
            tensor.copy_(values.to(dtype).float())


def golden_of(model, vocab):
    gen = torch.Generator().manual_seed(2)
    ids = torch.randint(3, vocab, (N_PROMPT,), generator=gen).tolist()
    greedy, margin = tiny.greedy_of(model, ids, N_GREEDY)
    tensors = {"input_ids": torch.tensor(ids), "logits": tiny.logits_of(model, ids).contiguous(),
               "greedy": torch.tensor(greedy)}
    return tensors, margin


def make(out, config, dtype):
    model = tiny.make_model(config)
    randomize(model, dtype)
    os.makedirs(out, exist_ok=True)
    model.to(dtype).save_pretrained(out, safe_serialization=True)
    stored = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager",
                                                               dtype=torch.float32).eval()
    tensors, margin = golden_of(stored, config.vocab_size)
    save_file(tensors, os.path.join(out, "golden.safetensors"),
              metadata={"transformers": transformers.__version__, "greedy_margin": f"{margin:.5f}"})
    extra = os.path.join(out, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    print(f"{out}: {sum(p.numel() for p in stored.parameters())} parameters, smallest greedy margin {margin:.5f}")


def check(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                              dtype=torch.float32).eval()
    path = os.path.join(folder, "golden.safetensors")
    want = load_file(path)
    ids = want["input_ids"].tolist()
    got = tiny.logits_of(model, ids)
    error = float((got - want["logits"]).norm() / want["logits"].norm())
    greedy, _ = tiny.greedy_of(model, ids, len(want["greedy"]))
    with safe_open(path, "pt") as f:
        print(f"{folder}: made with {f.metadata()}")
    print(f"{folder}: relative error {error:.2e}, greedy {'equal' if greedy == want['greedy'].tolist() else 'DIFFERENT'}")
    return error < 1e-5


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", nargs="?")
    ap.add_argument("--type", help="model type of transformers")
    ap.add_argument("--config", help="a config.json to start from")
    ap.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration key; JSON values")
    ap.add_argument("--float32", action="store_true", help="store float32 (default: bfloat16)")
    ap.add_argument("--check", metavar="FOLDER")
    a = ap.parse_args()
    if a.check:
        sys.exit(0 if check(a.check) else 1)
    if not a.out or bool(a.type) == bool(a.config):
        ap.error("give OUT and one of --type and --config")
    settings = dict((k, tiny.parse_value(v)) for k, _, v in (s.partition("=") for s in a.set))
    if a.config:
        config = transformers.AutoConfig.from_pretrained(a.config, **settings)
    else:
        config = tiny.make_config(a.type, settings)
    make(a.out, config, torch.float32 if a.float32 else torch.bfloat16)


if __name__ == "__main__":
    main()
