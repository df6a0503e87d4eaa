#!/usr/bin/env python3
"""Trains tern-tools. usage: train.py OUT [--seconds 270] [--layers 8] ...

Ends after the given seconds, whatever it has reached, or earlier when 99 % of the held-out answers are right twice, and writes a Hugging Face folder into OUT/tern-tools and a log to stdout. Data
are made by worker processes while it trains; no sample is seen twice. An answer counts as right if every token of it is the most
probable one, which is the same as greedy decoding giving exactly this answer."""
import argparse, collections, json, math, multiprocessing as mp, os, random, time

import numpy as np
import data
from export import write_folder

START, TAIL = time.time(), 20


def make_batches(seed, most, tokens, queue):
    """A worker: batches of samples of about the same length, as arrays (rows, length) of token ids, with the length of each prompt."""
    rng, tok = random.Random(seed), data.Tokenizer()
    pad = tok.ids["<|pad|>"]
    while True:
        made = []
        for _ in range(600):
            p, a = data.sample(rng, False, most.value)
            p, a = tok.encode(p), tok.encode(a)
            if len(p) + len(a) <= 1536:
                made.append((len(p), p + a))
        made.sort(key=lambda s: len(s[1]))
        batches, k = [], 0
        while k < len(made):
            n = 1
            while k + n < len(made) and (n + 1) * len(made[k + n][1]) <= tokens:
                n += 1
            rows = made[k:k + n]
            k += n
            if k >= len(made) and k - n:
                break                                      # the last one is not full
            width = -(-max(len(r[1]) for r in rows) // 32) * 32
            x = np.full((n, width), pad, np.int16)
            for i, (_, r) in enumerate(rows):
                x[i, :len(r)] = r
            batches.append((x, np.array([r[0] for r in rows], np.int32)))
        rng.shuffle(batches)
        for b in batches:
            queue.put(b)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--seconds", type=float, default=270)
    ap.add_argument("--tokens", type=int, default=49152)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--width", type=int, default=256)
    ap.add_argument("--heads", type=int, default=4)
    ap.add_argument("--ffn", type=int, default=640)
    ap.add_argument("--rate", type=float, default=1.5e-3)
    ap.add_argument("--workers", type=int, default=14)
    ap.add_argument("--device", default="cuda")
    o = ap.parse_args()
    most, queue = mp.Value("i", 2), mp.Queue(48)
    workers = [mp.Process(target=make_batches, args=(1000 + i, most, o.tokens, queue), daemon=True) for i in range(o.workers)]
    for w in workers:
        w.start()

    import torch
    import torch.nn.functional as F
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    tok = data.Tokenizer()
    pad, d, heads, hd = tok.ids["<|pad|>"], o.width, o.heads, o.width // o.heads
    inv = 1.0 / 10000 ** (torch.arange(0, hd, 2, device=o.device).float() / hd)
    turn = torch.arange(2048, device=o.device).float()[:, None] * inv[None]
    cos, sin = torch.cat([turn.cos()] * 2, -1), torch.cat([turn.sin()] * 2, -1)

    def rotate(x, n):
        h = torch.cat([-x[..., hd // 2:], x[..., :hd // 2]], -1)
        return (x * cos[:n] + h * sin[:n]).to(torch.bfloat16)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            lin = lambda a, b: torch.nn.Linear(a, b, bias=False)
            self.input_layernorm, self.post_attention_layernorm = torch.nn.RMSNorm(d, 1e-5), torch.nn.RMSNorm(d, 1e-5)
            self.self_attn, self.mlp = torch.nn.Module(), torch.nn.Module()
            for n in ("q", "k", "v", "o"):
                setattr(self.self_attn, n + "_proj", lin(d, d))
            self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = lin(d, o.ffn), lin(d, o.ffn), lin(o.ffn, d)

        def forward(self, x):
            b, n, _ = x.shape
            a, h = self.self_attn, self.input_layernorm(x)
            q, k, v = (p(h).view(b, n, heads, hd).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj))
            y = F.scaled_dot_product_attention(rotate(q, n), rotate(k, n), v, is_causal=True)
            x = x + a.o_proj(y.transpose(1, 2).reshape(b, n, d))
            h = self.post_attention_layernorm(x)
            return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(h)) * self.mlp.up_proj(h))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(tok.n, d)
            self.layers = torch.nn.ModuleList(Block() for _ in range(o.layers))
            self.norm = torch.nn.RMSNorm(d, 1e-5)
            for n, p in self.named_parameters():
                if p.dim() > 1:
                    torch.nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * o.layers) if "o_proj" in n or "down_proj" in n else 1))

        def forward(self, ids):
            x = self.embed_tokens(ids)
            for l in self.layers:
                x = l(x)
            return self.norm(x)

    model = Model().to(o.device)
    n_params = sum(p.numel() for p in model.parameters())
    decay = [p for p in model.parameters() if p.dim() > 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}],
                            lr=o.rate, betas=(0.9, 0.95), fused=o.device == "cuda")
    autocast = lambda: torch.autocast(o.device, torch.bfloat16)
    print(f"{n_params} parameters, vocabulary {tok.n}, ready after {time.time() - START:.1f} s", flush=True)

    def held_set(n, agent, seed, held=True):
        rng, out = random.Random(seed), []
        for i in range(n):
            p, a = data.sample(rng, held, 26, list(data.AGENTS)[i % 4] if agent else None)
            out.append((tok.encode(p), tok.encode(a)))
        return sorted(out, key=lambda s: len(s[0]) + len(s[1]))

    def evaluate(rows, show=0):
        model.eval()
        right, total, shown = collections.Counter(), collections.Counter(), 0
        with torch.no_grad(), autocast():
            for k in range(0, len(rows), 64):
                part = rows[k:k + 64]
                width = max(len(p) + len(a) for p, a in part)
                x = torch.full((len(part), width), pad)
                for i, (p, a) in enumerate(part):
                    x[i, :len(p) + len(a)] = torch.tensor(p + a)
                h = model(x.to(o.device))
                for i, (p, a) in enumerate(part):
                    with torch.autocast(o.device, enabled=False):
                        said = (h[i, len(p) - 1:len(p) + len(a) - 1].float() @ model.embed_tokens.weight.T).argmax(-1).tolist()
                    text = tok.decode(p)
                    kind = "call" if a[0] == tok.ids["<tool_call>"] else "end" if "<|tool|>\n" in text else "plain"
                    total[kind] += 1
                    right[kind] += said == a
                    if said != a and shown < show:
                        shown += 1
                        print(f"--- wrong: {text[text.rfind('<|user|>'):]!r}\n   wanted {tok.decode(a)!r}\n   said   {tok.decode(said)!r}")
        model.train()
        share = sum(right.values()) / sum(total.values())
        return " ".join(f"{k} {right[k]}/{total[k]}" for k in sorted(total)) + f" all {share:.4f}", share

    def save():
        state = {"model." + k: v.detach().to(torch.float16).cpu().contiguous() for k, v in model.state_dict().items()}
        write_folder(f"{o.out}/tern-tools", tok, state, layers=o.layers, width=d, heads=heads, ffn=o.ffn)

    small = held_set(400, False, 77), held_set(300, True, 78), held_set(300, False, 79, False)
    step, seen, last, losses, good, end = 0, 0, time.time(), [0.0], 0, None
    begin = time.time()
    left = lambda: (time.time() - begin) / (o.seconds - (begin - START) - 14)
    while (at := left()) < 1 and not (end and time.time() > end):
        most.value = 2 if at < 0.06 else 9 if at < 0.2 else 26
        x, lengths = queue.get()
        for g in opt.param_groups:
            g["lr"] = o.rate * min(1, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * at)))
            if end:                                        # good enough: the rate goes down to nothing in the last seconds
                g["lr"] = min(g["lr"], o.rate * 0.5) * max(0.01, (end - time.time()) / TAIL)
        x = torch.from_numpy(x).to(o.device).long()
        target = x[:, 1:]
        answer = (torch.arange(1, x.shape[1], device=o.device)[None] >= torch.from_numpy(lengths).to(o.device)[:, None]) & (target != pad)
        other = (torch.rand(target.shape, device=o.device) < 0.08) & (target != pad) & ~answer
        with autocast():
            h = model(x[:, :-1])
            pick = (answer | other).flatten().nonzero()[:, 0]
            logits = h.flatten(0, 1)[pick] @ model.embed_tokens.weight.T
        ce = F.cross_entropy(logits.float(), target.flatten()[pick], reduction="none")
        w = answer.flatten()[pick]
        loss = ce[w].mean() + 0.1 * ce[~w].mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step, seen = step + 1, seen + x.numel()
        if step % 50 == 0:
            losses.append(ce[w].mean().item())
        if time.time() - last > 20 and not end:
            last = time.time()
            (held, a1), (agents, a2), (fresh, _) = (evaluate(r) for r in small)
            print(f"{time.time() - START:6.1f} s step {step} tokens {seen / 1e6:.0f} M loss {losses[-1]:.4f} queue {queue.qsize()} | held {held} | agents {agents} | not held out {fresh}", flush=True)
            save()
            good = good + 1 if min(a1, a2) >= 0.99 else 0
            if good >= 2:
                end = time.time() + TAIL
    save()
    print(f"trained: {step} steps, {seen / 1e6:.1f} M tokens, {time.time() - START:.0f} s", flush=True)
    print("held-out:", evaluate(held_set(1200, False, 991), 14)[0], flush=True)
    print("agents' tools, held-out requests:", evaluate(held_set(800, True, 992), 10)[0], flush=True)
    print(f"finished after {time.time() - START:.0f} s", flush=True)
    for w in workers:
        w.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
