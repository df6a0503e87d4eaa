#!/usr/bin/env python3
"""Prints lines for tests/golden/variants.jsonl.gz: a configuration, the names, shapes and spread of its tensors, some logits.

    variants.py llama base                                    the small sizes below
    variants.py llama rope_linear rope_scaling='{"type": "linear", "factor": 2.5}'

No weights are stored: each value follows from the tensor's name and its index, here and in tests/test_variants.c. Append the
lines with: variants.py ... | gzip >>tests/golden/variants.jsonl.gz"""
import json
import sys

import torch

import tiny

SIZES = {"hidden_size": 96, "intermediate_size": 112, "num_hidden_layers": 4, "num_attention_heads": 6,
         "num_key_value_heads": 2, "max_position_embeddings": 256}
MASK = (1 << 64) - 1


def fnv1a(text):
    h = 0xcbf29ce484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001b3 & MASK
    return h


def value(seed, i, base, spread):
    """SplitMix64 of the name's hash and the index, as a number in base ± spread."""
    x = (seed + (i + 1) * 0x9e3779b97f4a7c15) & MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    x ^= x >> 31
    return base + spread * (2 * ((x >> 40) * 2.0 ** -24) - 1)


def fill(model):
    tensors, seen = [], set()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.data_ptr() in seen:        # tied: stored once
                continue
            seen.add(tensor.data_ptr())
            base, spread = tiny.spread_of(name, tensor)
            seed = fnv1a(name)
            flat = torch.tensor([value(seed, i, base, spread) for i in range(tensor.numel())], dtype=torch.float32)
            tensor.copy_(flat.reshape(tensor.shape))
            tensors.append([name, list(tensor.shape), base, spread])
    return tensors


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    model_type, label, *rest = sys.argv[1:]
    settings = dict((k, tiny.parse_value(v)) for k, _, v in (s.partition("=") for s in rest))
    config = tiny.make_config(model_type, {**SIZES, **settings})
    model = tiny.make_model(config)
    tensors = fill(model)
    rows = tiny.logits_of(model, [(i * 37 + 11) % 320 for i in range(40)])
    kept = {**config.to_diff_dict(), "model_type": model_type, "architectures": [type(model).__name__]}
    print(json.dumps({"name": f"{model_type}--{label}", "config": kept, "tensors": tensors,
                      "rows": [[round(float(rows[k][i * 20]), 6) for i in range(16)] for k in (7, 39)]},
                     separators=(",", ":")))


if __name__ == "__main__":
    main()
