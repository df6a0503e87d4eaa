#!/usr/bin/env python3
"""Golden blocks of Q1_0, Q2_0, NVFP4 and the IQ..._K formats for tests/quant_golden.h.

Each format is decoded element by element, in plain Python, from its layout as the projects that define it
describe it: nothing here is shared with src/kernel/quant_ik.c.
usage: late_blocks.py            prints the entries"""
import random
import struct


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


T4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
T3 = [-63, -40, -23, -10, 1, 13, 28, 47]
T5 = [-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
      -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121]
KL = [0xe9c1, 0x0dc1, 0xc1d8, 0xf6d8, 0x0dd8, 0x2fd8, 0xd8e9, 0xe9e9, 0x01e9, 0x0de9, 0x1ce9, 0xc1f6,
      0x01f6, 0x0df6, 0x2ff6, 0xe901, 0xf601, 0x0101, 0x0d01, 0x1c01, 0xd80d, 0xe90d, 0xf60d, 0x010d,
      0x0d0d, 0xc11c, 0xe91c, 0x011c, 0x1c1c, 0x2f1c, 0xe92f, 0x0d2f]
E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]


def half(b):
    return struct.unpack("<e", bytes(b[:2]))[0]


def bits(b, at, n):
    """n bits from bit `at` of little-endian bytes."""
    v = int.from_bytes(bytes(b), "little") >> at
    return v & ((1 << n) - 1)


def q1_0(b, k):
    return half(b) * (1 if bits(b[2:], k, 1) else -1)


def q2_0(b, k):
    return half(b) * (bits(b[2:], 2 * k, 2) - 1)


def nvfp4(b, k):
    e, m = b[k // 16] >> 3 & 15, b[k // 16] & 7
    d = 0.0 if (e, m) == (15, 7) else (m * 2.0**-9 if e == 0 else (8 + m) * 2.0**(e - 10))
    sub, j = k // 16, k % 16
    q = bits(b[4 + 8 * sub:12 + 8 * sub], 8 * (j % 8) + 4 * (j // 8), 4)
    return f32((-1 if q > 8 else 1) * E2M1[q & 7] * d)


def iq4_k(b, k):
    s = k // 16
    sc = bits(b[8:16], 4 * s, 4) + 16 * bits(b[4:8], 2 * s, 2) - 32
    q = bits(b[16 + 16 * (k // 32):], 8 * (k % 16) + 4 * (k % 32 // 16), 4)
    return f32(half(b) * sc) * (T4[q] + 4 * bits(b[2:4], s, 1))


def iq4_ks(b, k):
    d, b = f32(struct.unpack("<f", bytes(b[:4]))[0]), b[4:]
    s = k // 32
    q = bits(b[8 + 16 * s:], 8 * (k % 16) + 4 * (k % 32 // 16), 4)
    return f32(d * ((b[s] & 254) - 127)) * (T4[q] + 4 * (b[s] & 1))


def iq5_ks(b, k):
    d, b = f32(struct.unpack("<f", bytes(b[:4]))[0]), b[4:]
    s, j = k // 32, k % 32
    q = bits(b[8 + 32 * (k // 64):], 8 * j + 4 * (s % 2), 4) + 16 * bits(b[136:], 8 * j + s, 1)
    return f32(d * ((b[s] & 254) - 127)) * (T5[q] + 2 * (b[s] & 1))


def iq3_ks(b, k):
    d, b = half(b), b[2:]
    s, j = k // 32, k % 32
    sc = bits(b[2:6], 8 * (s % 4) + 4 * (s // 4), 4) + 16 * bits(b[:2], s, 1) - 16
    q = bits(b[6 + 32 * (k // 128):], 8 * j + 2 * (s % 4), 2) + 4 * bits(b[70:], 8 * j + s, 1)
    return f32(d * sc) * (T3[q] + 4 * bits(b[:2], 8 + s, 1))


def iq2_kl(b, k):
    d, b = half(b), b[2:]
    s, j = k // 32, k % 32 // 2
    sc = bits(b[2:6], 8 * (s % 4) + 4 * (s // 4), 4) + 16 * bits(b[:2], 2 * s, 2) - 32
    q = bits(b[6 + 16 * (k // 64):], 8 * j + 4 * (s % 2), 4) + 16 * bits(b[70:], 8 * j + s, 1)
    v = KL[q] >> 8 * (k % 2) & 255
    return f32(d * sc) * (v - 256 if v > 127 else v)


FORMATS = [("NVFP4", nvfp4, 64, 36, 0), ("Q1_0", q1_0, 128, 18, 2), ("Q2_0", q2_0, 64, 18, 2),
           ("IQ4_K", iq4_k, 256, 144, 2), ("IQ4_KS", iq4_ks, 256, 140, 4), ("IQ5_KS", iq5_ks, 256, 172, 4),
           ("IQ3_KS", iq3_ks, 256, 104, 2), ("IQ2_KL", iq2_kl, 256, 88, 2)]

def literal(v):
    s = "%.9g" % v
    return (s if "." in s or "e" in s else s + ".0") + "f"


rng = random.Random(42)
for name, decode, n, size, scale in FORMATS:
    b = [rng.randrange(256) for _ in range(size)]
    if scale == 2:
        b[:2] = struct.pack("<e", 0.0123)
    if scale == 4:
        b[:4] = struct.pack("<f", 0.00123)
    y = [f32(decode(b, k)) for k in range(n)]
    h = 0xcbf29ce484222325
    for byte in struct.pack(f"<{n}f", *y):
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    text = bytes(b).hex()
    print(f"    {{ DT_{name},")
    for i in range(0, len(text), 88):
        print(f'      "{text[i:i + 88]}"' + ("," if i + 88 >= len(text) else ""))
    print("      { " + ", ".join(literal(y[(i * 37 + 5) % n]) for i in range(6)) + " },")
    print(f"      0x{h:016x} }},")
