"""Generative rerankers for tests: the weights of tests/golden/hf/qwen2, whose logits another program has computed, with a tokenizer of
bytes that has the tokens yes and no. usage: rankers.py FOLDER, or rankers.py --pairs CROSS-ENCODER FOLDER: a copy with a
tokenizer that pairs texts as its model does. The first writes
  gen-plain    a model that generates text; nothing says that it ranks
  gen-score    the same with the module LogitScore of sentence-transformers
  gen-head     a classifier with the classes yes and no, whose rows are those of the logits; its prompt is a template "rerank"
  gen-chat     no ChatML: the question is written by its chat template
  gen-mute     a vocabulary without "yes"
  rank.safetensors   prompts with their scores, by the golden logits, for tern eval rerank
"""
import json
import math
import os
import shutil
import struct
import sys

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden/hf/qwen2")
SYSTEM = ('Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only '
          'be "yes" or "no".')
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MERGED = ["ye", "yes", "no"]  # from y + e, ye + s, n + o
YES, NO = 257, 258
FIRST_SPECIAL = 256 + len(MERGED)
TEMPLATE = ("<|im_start|>system\n" + SYSTEM + "<|im_end|>\n<|im_start|>user\n<Instruct>: " + INSTRUCTION +
            "\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def prompt(query, document, instruction=INSTRUCTION):
    head, rest = TEMPLATE.split("{query}")
    middle, tail = rest.split("{document}")
    return head.replace(INSTRUCTION, instruction) + query + middle + document + tail


def plain_ids(text):
    """Without special tokens."""
    out, b, i = [], text.encode(), 0
    while i < len(b):
        for piece in ("yes", "ye", "no"):
            if b.startswith(piece.encode(), i):
                out.append(256 + MERGED.index(piece))
                i += len(piece)
                break
        else:
            out.append(b[i])
            i += 1
    return out


def ids(text):
    out = []
    while text:
        at, name = min((text.find(s) if s in text else len(text), s) for s in SPECIAL)
        out += plain_ids(text[:at])
        if at < len(text):
            out.append(FIRST_SPECIAL + SPECIAL.index(name))
        text = text[at + len(name):]
    return out


def tensors(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    head = json.loads(b[8:8 + n])
    return {k: (t, b[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for k, t in head.items() if k != "__metadata__"}


def golden():
    """The ids of the golden prompt, and the logits behind each of them."""
    t = tensors(GOLDEN + "/golden.safetensors")
    tokens = struct.unpack("<48q", t["input_ids"][1])
    width = t["logits"][0]["shape"][1]
    numbers = struct.unpack("<%df" % (48 * width), t["logits"][1])
    return list(tokens), [numbers[i * width:(i + 1) * width] for i in range(48)]


def write_tensors(path, t):
    head, body = {}, b""
    for k, (about, data) in t.items():
        head[k] = {"dtype": about["dtype"], "shape": about["shape"], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def byte_names():
    """The characters that stand for bytes in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def tokenizer(specials, merges):
    names = byte_names()
    vocab = {names[b]: b for b in range(256)}
    for i, piece in enumerate(MERGED):
        vocab[piece if merges else "unused%d" % i] = 256 + i
    added = [{"id": FIRST_SPECIAL + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": not s.endswith("think>")} for i, s in enumerate(specials)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "vocab": vocab, "merges": [["y", "e"], ["ye", "s"], ["n", "o"]] if merges else []}}


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    json.dump(value, open(path, "w"))


def copy(to, specials=SPECIAL, merges=True, config=None):
    shutil.copytree(GOLDEN, to, copy_function=shutil.copyfile)
    write_json(to + "/tokenizer.json", tokenizer(specials, merges))
    write_json(to + "/tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", **(config or {})})


def write_head(to):
    copy(to, config={"chat_template": [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "rerank", "template": TEMPLATE}]})
    config = json.load(open(to + "/config.json"))
    config.update(architectures=["Qwen2ForSequenceClassification"], id2label={"0": "yes", "1": "no"}, label2id={"yes": 0, "no": 1})
    write_json(to + "/config.json", config)
    t = {k: v for k, v in tensors(to + "/model.safetensors").items() if k != "lm_head.weight"}
    name = next(k for k in t if k.endswith("embed_tokens.weight"))  # the logits are made by the embedding: it is tied
    about, data = t[name]
    row = len(data) // about["shape"][0]
    t["score.weight"] = ({"dtype": about["dtype"], "shape": [2, about["shape"][1]]}, b"".join(data[i * row:(i + 1) * row] for i in (YES, NO)))
    write_tensors(to + "/model.safetensors", t)


def p_yes(yes, no):
    return 1 / (1 + math.exp(no - yes))


def write_golden(to):
    tokens, logits = golden()
    t = {}
    for i, n in enumerate((1, 7, 20, 48)):
        t["input_ids.%d" % i] = ({"dtype": "I64", "shape": [n]}, struct.pack("<%dq" % n, *tokens[:n]))
        t["score.%d" % i] = ({"dtype": "F32", "shape": [1]}, struct.pack("<f", p_yes(logits[n - 1][YES], logits[n - 1][NO])))
    write_tensors(to, t)


def write_pairs(model, to):
    """<s> A </s> </s> B </s>, or [CLS] A [SEP] B [SEP]; all tokens have one type."""
    modern = json.load(open(model + "/config.json"))["model_type"] == "modernbert"
    first, last = ("[CLS]", "[SEP]") if modern else ("<s>", "</s>")
    shutil.copytree(model, to, copy_function=shutil.copyfile)
    t = tokenizer([first, last], True)

    def part(x):
        return {"Sequence": {"id": x, "type_id": 0}} if x in "AB" else {"SpecialToken": {"id": x, "type_id": 0}}
    t["post_processor"] = {"type": "TemplateProcessing", "single": [part(x) for x in (first, "A", last)],
                           "pair": [part(x) for x in (first, "A", *[last] * (1 if modern else 2), "B", last)],
                           "special_tokens": {x: {"id": x, "ids": [FIRST_SPECIAL + i], "tokens": [x]} for i, x in enumerate((first, last))}}
    write_json(to + "/tokenizer.json", t)
    write_json(to + "/tokenizer_config.json", {"cls_token": first, "sep_token": last} if modern else {"bos_token": first, "eos_token": last})


def main():
    if sys.argv[1] == "--pairs":
        return write_pairs(*sys.argv[2:])
    to = sys.argv[1]
    copy(to + "/gen-plain")
    copy(to + "/gen-score")
    write_json(to + "/gen-score/modules.json", [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
                                                {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}])
    write_json(to + "/gen-score/1_LogitScore/config.json", {"true_token_id": YES, "false_token_id": NO, "module_input_name": "causal_logits"})
    write_head(to + "/gen-head")
    copy(to + "/gen-chat", specials=[], config={"chat_template": "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"})
    copy(to + "/gen-mute", merges=False)
    write_golden(to + "/rank.safetensors")


if __name__ == "__main__":
    main()
