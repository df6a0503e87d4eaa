"""GGUF files with single things changed, for the tests of damaged models."""
import os
import struct


class Gguf:
    """The directory of a GGUF file in memory: where each tensor's entry and data are."""

    def __init__(self, path):
        self.data = bytearray(open(path, "rb").read())
        self.at = 8
        n_tensors, n_keys = self.take("<QQ")
        align = 32
        for _ in range(n_keys):
            name = self.text()
            value = self.value(self.take("<I")[0])
            align = value if name == b"general.alignment" else align
        self.entries = {}
        for _ in range(n_tensors):
            name = self.text()
            dims = self.take("<%dQ" % self.take("<I")[0])
            self.entries[name.decode()] = (self.at, dims, *self.take("<IQ"))
        self.start = (self.at + align - 1) // align * align

    def take(self, form):
        v = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return v

    def text(self):
        n = self.take("<Q")[0]
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            kind, n = self.take("<IQ")
            return [self.value(kind) for _ in range(n)]
        return self.take({0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}[kind])[0]

    def set_type(self, name, kind):
        struct.pack_into("<I", self.data, self.entries[name][0], kind)

    def write_at(self, name, offset, raw):
        at = self.start + self.entries[name][3] + offset
        self.data[at:at + len(raw)] = raw

    def save(self, folder, name):
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(self.data)
        return path
