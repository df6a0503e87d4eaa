#!/usr/bin/env python3
"""Writes a model that generates fixed texts. usage: tests/scripted.py FOLDER [FAMILY ...]
       or: tests/scripted.py --random FOLDER FAMILY, a model that generates random text
       or: tests/scripted.py --chat FOLDER MODEL [think], a copy of a model of at least 320 tokens that has no tokenizer, with one

The next token depends on the last one only: embeddings are unit vectors, attention and FFN add nothing, and the output
projection maps each token to its successor. If the last message of a chat is "play NAME", the prompt ends with the token
that begins the script NAME. Scripts are cut into tokens at places that are hard for parsers. The template selects the
family of the answers. Any other prompt ends at once. write_random() writes the model with random text."""
import array, json, os, random, re, shutil, struct, sys

# Families: markers for the template, and scripts as lists of pieces. No piece may occur in two scripts.
SCRIPTS = {
    "hermes": ("<tool_call> </tool_call> <think>", {
        "hello": ["Hel", "lo, wor", "ld."],
        "call": ["<think>", "\nI need", " the weather.\n", "</thi", "nk>\n\n", "Let me ", "look.\n", "<tool", "_call>\n{\"name\": \"get_wea",
                 "ther\", \"arguments\": {\"city\": \"Z", "\u00fcrich\", \"da", "ys\": 2}}\n</tool", "_call>\n"],
        "two": ["<tool_c", "all>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}", "</tool_", "call>\n<", "tool_call",
                ">{\"name\": \"add\", \"argu", "ments\": {\"a\": 1, \"b\": 2}}</", "tool_call>"],
        "filling": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "filled", " in"],
        "broken": ["See ", "<tool_ca", "ll>{\"name\": oops}", "</tool_cal", "l> sorry"],
    }),
    "harmony": ("<|channel|> <|start|>", {
        "call": ["<|channel|>", "anal", "ysis", "<|message|>", "I should", " ask.", "<|end|>", "<|start|>", "assis", "tant<|chan",
                 "nel|>commen", "tary to=func", "tions.get_weather ", "<|constrain|>", "json<|mess", "age|>{\"city\":",
                 "\"Bern\"}", "<|call|>"],
        "end": ["<|return|>"],
    }),
    # A template that knows neither tools nor a system role, and wants user and assistant to alternate.
    "strict": ("", {
        "hello": ["Hi ", "there."],
        "filling": ["<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "from the", " project"],
        "call": ["<tool_call>\n{\"name\": \"get_weather\", \"arg", "uments\": {\"city\": \"Bern\"}}\n</tool_call>"],
    }),
}


def pieces(family):
    """All pieces of all scripts, and the successor of each."""
    order, after = [], {}
    for name, script in SCRIPTS[family][1].items():
        last = f"<|play {name}|>"
        order.append(last)
        for p in script:
            if p in order:
                raise SystemExit(f"{family}: '{p}' is in two places")
            order.append(p)
            after[last] = p
            last = p
        after[last] = "<|eos|>"
    return order, after


def bytes_to_unicode():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    n, table = 0, {}
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + n)
            n += 1
    return table


# Coding agents: the first answer runs a shell command by whatever name the agent gives its tool, the next one ends.
AGENT_COMMAND = "echo written by the agent > made.txt"
AGENT_TOOLS = {
    "shell_command": {"command": AGENT_COMMAND}, "exec_command": {"cmd": AGENT_COMMAND}, "shell": {"command": ["bash", "-c", AGENT_COMMAND]},
    "Bash": {"command": AGENT_COMMAND, "description": "writes a file"}, "bash": {"command": AGENT_COMMAND, "description": "writes a file"},
    "run_shell_command": {"command": AGENT_COMMAND, "description": "writes a file", "is_background": False},
}
SCRIPTS["agent"] = ("<tool_call> </tool_call>", {
    **{name: ["<tool_call>\n" + json.dumps({"name": name, "arguments": args}) + "\n</tool_call>"] for name, args in AGENT_TOOLS.items()},
    "done": ["The file", " is written."], "title": ["A title"],
})
# Agents send long prompts, and every byte would be a token: only what decides the answer is rendered.
AGENT = ("{# <tool_call> </tool_call> #}{% set ns = namespace(tool='', done=false) %}{% for t in tools or [] %}"
         "{% if t.function.name in [" + ", ".join(f"'{n}'" for n in AGENT_TOOLS) + "] and not ns.tool %}{% set ns.tool = t.function.name %}{% endif %}{% endfor %}"
         "{% for m in messages %}{% if m.role == 'tool' %}{% set ns.done = true %}{% endif %}{% endfor %}<{{ messages | length }}>"
         "{% if not ns.tool %}<|play title|>{% elif ns.done %}<|play done|>{% else %}<|play {{ ns.tool }}|>{% endif %}")

STRICT = ("{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
          "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
          "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}{% set last = messages[-1].content.split('\n')[-1] %}"
          "{% if last.startswith('play ') %}<|{{ last }}|>{% else %}<|play nothing|>{% endif %}{% endif %}")


def template_of(family):
    if family in ("strict", "agent"):
        return STRICT if family == "strict" else AGENT
    return ("{# " + SCRIPTS[family][0] + " #}{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
            "({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}{{ '\\n' }}{% endfor %}"
            "{% if effort is defined %}effort {{ effort }}{% endif %}"
            "{% if add_generation_prompt %}{% set last = messages[-1].content or '' %}"
            "{% if last.startswith('play ') %}<|{{ last }}|>{% else %}<|play nothing|>{% endif %}{% endif %}")


def write(folder, family="hermes"):
    order, after = pieces(family)
    write_model(folder, order, template_of(family), after=after)


def write_random(folder, template, seed=1):
    """A model that generates random text: bytes, the markers of a real template and the end token, about equally likely."""
    marks = set(re.findall(r"<\|[^<>|\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Z_]{3,20}\]|</?(?:tool_call|think|arg_key|arg_value)>", template))
    write_model(folder, sorted(marks), template, seed=seed)


# A turn for each message. Of the models that think, the history does not have the opening of the answer.
CHAT = ("{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|eos|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}")
CHAT_THINK = CHAT.replace("assistant\n{%", "assistant\n<|think|>\n\n<|/think|>\n\n{%")


def write_chat(folder, model, think=False, context=None):
    """A copy of a folder without a tokenizer, such as tests/golden/hf/mamba2: every byte is a token, messages are turns."""
    shutil.copytree(model, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    os.chmod(folder, 0o755)
    write_tokenizer(folder, ["<|eos|>", "<|begin|>", "<|think|>", "<|/think|>"], CHAT_THINK if think else CHAT, 0.0)
    if context:
        config = json.load(open(f"{folder}/config.json"))
        for c in (config, config.get("text_config", {})):
            if "max_position_embeddings" in c:
                c["max_position_embeddings"] = context
        json.dump(config, open(f"{folder}/config.json", "w"))


def write_model(folder, order, template, after=None, seed=None):
    names = ["<|eos|>"] + order
    n = -(-(256 + len(names)) // 64) * 64
    ids = write_tokenizer(folder, names, template, 1.0 if seed else 0.0)
    write_weights(folder, n, ids, after, seed)


def write_tokenizer(folder, names, template, temperature):
    """Every byte is a token, and the names are, behind them; the first is the end token. Returns the ids of the names."""
    base = [bytes_to_unicode()[b] for b in range(256)]
    ids = {p: 256 + i for i, p in enumerate(names)}
    os.makedirs(folder, exist_ok=True)

    special = re.compile(r"^(<\|.*\|>|<｜.*｜>|\[.*\])$")
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": p, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": bool(special.match(p))} for p, i in ids.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {c: i for i, c in enumerate(base)}, "merges": []},
    }
    json.dump(tokenizer, open(f"{folder}/tokenizer.json", "w"))
    json.dump({"eos_token": "<|eos|>", "chat_template": template, "tokenizer_class": "PreTrainedTokenizerFast"},
              open(f"{folder}/tokenizer_config.json", "w"))
    json.dump({"eos_token_id": 256, "temperature": temperature}, open(f"{folder}/generation_config.json", "w"))
    return ids


def write_weights(folder, n, ids, after, seed):
    json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": n, "intermediate_size": 64,
               "num_hidden_layers": 1, "num_attention_heads": n // 64, "num_key_value_heads": n // 64, "vocab_size": n,
               "max_position_embeddings": 8192 if seed else 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
               "tie_word_embeddings": False, "eos_token_id": 256, "torch_dtype": "float32"}, open(f"{folder}/config.json", "w"))

    follows = [256] * n                                  # default successor: the end token
    for a, b in (after or {}).items():
        follows[ids[a]] = ids[b]
    one = struct.pack("<f", 1.0)
    embed, head = bytearray(4 * n * n), bytearray(4 * n * n)
    for t in range(n):
        embed[4 * (t * n + t):4 * (t * n + t) + 4] = one
        at = 4 * (follows[t] * n + t)
        head[at:at + 4] = one
    if seed:
        rng = random.Random(seed)
        head = array.array("f", [rng.random() * 0.1 for _ in range(n * n)]).tobytes()
    zeros = lambda *dims: bytes(4 * (dims[0] * (dims[1] if len(dims) > 1 else 1)))
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": ((n, n), embed), "lm_head.weight": ((n, n), head),
               "model.norm.weight": ((n,), one * n),
               layer + "input_layernorm.weight": ((n,), one * n), layer + "post_attention_layernorm.weight": ((n,), one * n)}
    for name in "qkvo":
        tensors[layer + f"self_attn.{name}_proj.weight"] = ((n, n), zeros(n, n))
    for name, dims in (("gate", (64, n)), ("up", (64, n)), ("down", (n, 64))):
        tensors[layer + f"mlp.{name}_proj.weight"] = (dims, zeros(*dims))
    header, data = {}, b""
    for name, (dims, raw) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(dims), "data_offsets": [len(data), len(data) + len(raw)]}
        data += bytes(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    open(f"{folder}/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    if sys.argv[1] == "--random":
        write_random(sys.argv[2], template_of(sys.argv[3]))
        sys.exit()
    if sys.argv[1] == "--chat":
        write_chat(sys.argv[2], sys.argv[3], "think" in sys.argv[4:])
        sys.exit()
    for family in sys.argv[2:] or ["hermes"]:
        write(sys.argv[1] + ("" if len(sys.argv) <= 3 else "-" + family), family)
