"""tiny.py - what model.py and variants.py share: a tiny random model of any transformers architecture."""
import json
import torch
import transformers

# Sizes that most configurations understand; keys that a configuration does not have are left out.
SMALL = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}


def parse_value(text):
    """"3" -> 3, "true" -> True, "{...}" -> dict, anything else is a string."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def make_config(model_type, settings):
    base = transformers.AutoConfig.for_model(model_type)
    known = {k: v for k, v in SMALL.items() if hasattr(base, k)}
    return transformers.AutoConfig.for_model(model_type, **{**known, **settings})


def make_model(config):
    """Eager attention in float32: the definition that tern's reference kernels follow."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return model.eval()


def spread_of(name, tensor):
    """(base, spread): values are uniform in base ± spread. Weights are scaled by their fan-in, so that activations keep
    their size from layer to layer; norms vary around one, biases around zero."""
    last = name.rsplit(".", 1)[-1]
    if last == "A_log":
        return 1.0, 0.8
    if last == "dt_bias" or name.endswith("dt_proj.bias"):
        return -1.5, 1.25
    if last == "e_score_correction_bias":
        return 0.0, 0.3
    if last == "D" or (tensor.dim() == 1 and last == "weight"):
        return 1.0, 0.5
    if tensor.dim() == 1:
        return 0.0, 0.5
    if "embed" in name or "wte" in name or "word_embeddings" in name:
        return 0.0, 1.25
    return 0.0, round(2.75 / tensor.shape[-1] ** 0.5, 3)


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids])).logits[0].float()


@torch.no_grad()
def greedy_of(model, ids, n):
    """The greedy continuation, and the smallest gap between the two best logits on the way."""
    out, margin = list(ids), float("inf")
    for _ in range(n):
        best = logits_of(model, out)[-1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        out.append(int(best.indices[0]))
    return out[len(ids):], margin
