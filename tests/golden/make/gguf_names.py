#!/usr/bin/env python3
"""Prints lines for tests/golden/gguf-names.jsonl.gz: what another converter calls the keys and tensors of a folder's GGUF file.

    gguf_names.py NAME=file.gguf ...        NAME: the folder of fixtures/hf that the file was made from

Only names, shapes and the keys of the architecture are taken, no values."""
import json
import os
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}   # scalar types, in bytes
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, fmt):
        value, = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return value

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        """Skips a value; a string is returned."""
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.take("I"), self.take("Q")
            if item in SIZES:
                self.at += SIZES[item] * n
            else:
                for _ in range(n):
                    self.value(item)
            return None
        self.at += SIZES[kind]
        return None


def describe(folder, path):
    with open(path, "rb") as f:
        r = Reader(f.read())
    if r.take("I") != 0x46554747:
        sys.exit(f"{path}: not a GGUF file")
    r.take("I")
    n_tensors, n_keys = r.take("Q"), r.take("Q")
    keys = {}
    for _ in range(n_keys):
        name = r.string()
        keys[name] = r.value(r.take("I"))
    arch = keys["general.architecture"]
    tensors = []
    for _ in range(n_tensors):
        name, n_dims = r.string(), r.take("I")
        dims = [r.take("Q") for _ in range(n_dims)]
        r.take("I"), r.take("Q")
        tensors.append([name, dims[::-1]])
    own = sorted(k[len(arch) + 1:] for k in keys if k.startswith(arch + "."))
    return {"folder": folder, "arch": arch, "keys": own, "tensors": sorted(tensors)}


def main():
    if len(sys.argv) < 2 or any("=" not in a for a in sys.argv[1:]):
        sys.exit(__doc__)
    for arg in sys.argv[1:]:
        name, _, path = arg.partition("=")
        print(json.dumps(describe(name, os.path.expanduser(path)), separators=(",", ":")))


if __name__ == "__main__":
    main()
