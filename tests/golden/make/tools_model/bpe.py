#!/usr/bin/env python3
"""Makes the merges of the tokenizer. usage: bpe.py OUT COUNT TEXT...

Only letters of ASCII are merged; every other byte is a token. A text therefore has the same tokens wherever it is: behind a space, a
quote or at the beginning of a line, and a model can copy it."""
import collections, heapq, re, sys

SPLIT = re.compile(r"[A-Z]*[a-z]+|[A-Z]+[a-z]*")


def merges_of(counts, n):
    words = [(list(w), c) for w, c in counts.items()]
    pairs, places = collections.Counter(), collections.defaultdict(set)
    for i, (w, c) in enumerate(words):
        for p in zip(w, w[1:]):
            pairs[p] += c
            places[p].add(i)
    heap = [(-c, p) for p, c in pairs.items()]
    heapq.heapify(heap)
    out = []
    while heap and len(out) < n:
        c, best = heapq.heappop(heap)
        if pairs[best] != -c:
            if pairs[best] > 0:
                heapq.heappush(heap, (-pairs[best], best))
            continue
        out.append(best)
        changed = set()
        for i in places.pop(best):
            w, c = words[i]
            for p in zip(w, w[1:]):
                pairs[p] -= c
            new, k = [], 0
            while k < len(w):
                if k + 1 < len(w) and (w[k], w[k + 1]) == best:
                    new.append(w[k] + w[k + 1])
                    k += 2
                else:
                    new.append(w[k])
                    k += 1
            words[i] = (new, c)
            for p in zip(new, new[1:]):
                pairs[p] += c
                places[p].add(i)
                changed.add(p)
        pairs[best] = 0
        for p in changed:
            heapq.heappush(heap, (-pairs[p], p))
    return out


if __name__ == "__main__":
    counts = collections.Counter()
    for name in sys.argv[3:]:
        weight = 1
        if ":" in name:
            name, weight = name.rsplit(":", 1)
        for w, c in collections.Counter(SPLIT.findall(open(name, encoding="utf-8", errors="replace").read())).items():
            counts[w] += c * int(weight)
    counts = {w: c for w, c in counts.items() if c > 1 and len(w) < 30}
    with open(sys.argv[1], "w") as f:
        f.write("".join(f"{a} {b}\n" for a, b in merges_of(counts, int(sys.argv[2]))))
