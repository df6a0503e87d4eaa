"""Writes tern-tools as a Hugging Face folder."""
import json, os, struct

import data


def tokenizer_json(tok):
    byte = data.bytes_to_unicode()
    vocab = {byte[b]: b for b in range(256)}
    vocab |= {a + b: 256 + i for i, (a, b) in enumerate(tok.merges)}
    marks = data.SPECIAL + data.MARKS
    big, small = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    pattern = (rf"[^\r\n\p{{L}}\p{{N}}]?{big}*{small}+|[^\r\n\p{{L}}\p{{N}}]?{big}+{small}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": tok.ids[p], "content": p, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": p in data.SPECIAL} for p in marks],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True, "vocab": vocab,
                  "merges": [[a, b] for a, b in tok.merges]},
    }


def write_folder(folder, tok, state, layers, width, heads, ffn):
    os.makedirs(folder, exist_ok=True)

    def put(name, value):
        with open(f"{folder}/{name}", "w") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)
    end = tok.ids["<|end|>"]
    put("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": width, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width // heads,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": True, "vocab_size": tok.n, "bos_token_id": None, "eos_token_id": end, "pad_token_id": tok.ids["<|pad|>"], "torch_dtype": "float16",
    })
    put("generation_config.json", {"eos_token_id": end, "pad_token_id": tok.ids["<|pad|>"], "do_sample": False, "temperature": 0.0})
    put("tokenizer.json", tokenizer_json(tok))
    put("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|end|>", "pad_token": "<|pad|>",
                                  "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 2048, "chat_template": data.TEMPLATE})
    if state is not None:
        head, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
        for name, t in state.items():
            raw = t.numpy().tobytes()
            head[name] = {"dtype": "F16", "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
            at += len(raw)
            blobs.append(raw)
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{folder}/model.safetensors.new", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
        os.replace(f"{folder}/model.safetensors.new", f"{folder}/model.safetensors")
