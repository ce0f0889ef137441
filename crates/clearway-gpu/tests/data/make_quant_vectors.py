#!/usr/bin/env python3
"""Writes quant_vectors.bin: block bytes and the floats that belong to them.

The oracle is the Python package `gguf` (made with 0.19.0, numpy 2.4.6), which shares no code with
the crate. Run it with no arguments; the output is the same every time. Blocks of MXFP4 have every exponent
but 255, which is NaN by the format's definition and a power of two to that package.

The file, all numbers little-endian:

    8 bytes   magic "CWQUANT1"
    u32       number of sections
    per section:
        8 bytes   type name, padded with NUL
        u32       0: the floats are the decoded bytes; 1: the bytes are the encoded floats
        u32       number of floats
        u32       number of bytes
        the bytes, then the floats as f32
"""

import pathlib
import struct

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

DECODE, ENCODE = 0, 1

# Byte offsets of the f16 fields of a block; everything else may be any bytes.
SCALES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
    Type.IQ4_XS: [0],
}
BLOCK_BYTES = {
    Type.Q4_0: 18,
    Type.Q4_1: 20,
    Type.Q5_0: 22,
    Type.Q5_1: 24,
    Type.Q8_0: 34,
    Type.Q2_K: 84,
    Type.Q3_K: 110,
    Type.Q4_K: 144,
    Type.Q5_K: 176,
    Type.Q6_K: 210,
    Type.IQ4_NL: 18,
    Type.IQ4_XS: 136,
}
BLOCKS_OF_32, BLOCKS_OF_256 = 32, 12
ENCODERS = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]

# Zeros, the smallest and largest subnormals, the smallest normals, the largest finite numbers.
CORNERS = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF]


def scales(rng: np.random.Generator, count: int) -> np.ndarray:
    """f16 bit patterns: some corners, otherwise magnitudes of 1e-6 to 1 of either sign."""
    magnitudes = 10.0 ** rng.uniform(-6, 0, count)
    bits = (magnitudes * rng.choice([-1.0, 1.0], count)).astype(np.float16).view(np.uint16)
    corners = rng.choice(np.array(CORNERS, np.uint16), count)
    return np.where(rng.random(count) < 0.3, corners, bits)


def random_blocks(rng: np.random.Generator, qtype: Type) -> np.ndarray:
    size = BLOCK_BYTES[qtype]
    count = BLOCKS_OF_256 if size > 40 else BLOCKS_OF_32
    blocks = rng.integers(0, 256, (count, size), np.uint8)
    for offset in SCALES[qtype]:
        blocks[:, offset : offset + 2] = scales(rng, count).astype("<u2").view(np.uint8).reshape(-1, 2)
    return blocks


def weights(rng: np.random.Generator) -> np.ndarray:
    """Blocks of 32 weights of many kinds, for the encoders."""
    spread = rng.normal(0, 1, (16, 32)) * 10.0 ** rng.uniform(-3, 2, (16, 1))
    offset = rng.normal(0, 1, (8, 32)) + rng.normal(0, 10, (8, 1))
    uniform = rng.uniform(-1, 1, (6, 32))
    subnormal_scale = rng.normal(0, 1, (6, 32)) * 10.0 ** rng.uniform(-7, -4, (6, 1))
    outlier = rng.normal(0, 0.02, (2, 32))
    outlier[0, 7], outlier[1, 31] = 1.0, -1.0
    constant = np.repeat([[0.37], [-0.37], [0.0]], 32, axis=1)
    ties = rng.integers(-16, 16, (4, 32)) / 2.0
    ties_of_bytes = rng.integers(-250, 250, (4, 32)) / 2.0
    ties_of_bytes[:, 5] = 127.0  # a Q8_0 scale of one
    kinds = [spread, offset, uniform, subnormal_scale, outlier, constant, ties, ties_of_bytes]
    return np.concatenate(kinds).astype(np.float32)


def section(qtype: Type, kind: int, block_bytes: np.ndarray, floats: np.ndarray) -> bytes:
    floats = np.ascontiguousarray(floats, "<f4").reshape(-1)
    raw = np.ascontiguousarray(block_bytes).view(np.uint8).tobytes()
    name = qtype.name.lower().encode().ljust(8, b"\0")
    return name + struct.pack("<III", kind, floats.size, len(raw)) + raw + floats.tobytes()


def main() -> None:
    rng = np.random.default_rng(20240607)
    parts = []

    plain = np.concatenate([rng.normal(0, 1, 192), rng.normal(0, 1, 64) * 10.0 ** rng.uniform(-30, 4, 64)])
    plain = plain.astype(np.float32)
    halves = np.concatenate([np.array(CORNERS + [0x7C00, 0xFC00], np.uint16), scales(rng, 244)]).astype("<u2")
    brains = (rng.integers(0, 0x7F80, 256) | rng.choice([0, 0x8000], 256)).astype("<u2")
    for qtype, raw in [(Type.F32, plain.view(np.uint8)), (Type.F16, halves.view(np.uint8)), (Type.BF16, brains.view(np.uint8))]:
        parts.append(section(qtype, DECODE, raw, dequantize(raw, qtype)))
        parts.append(section(qtype, ENCODE, quantize(plain, qtype), plain))

    for qtype in SCALES:
        blocks = random_blocks(rng, qtype)
        parts.append(section(qtype, DECODE, blocks, dequantize(blocks, qtype)))
    for qtype in ENCODERS:
        x = weights(rng)
        parts.append(section(qtype, ENCODE, quantize(x, qtype), x))
    blocks = rng.integers(0, 256, (255, 17), np.uint8)
    blocks[:, 0] = np.arange(255)
    with np.errstate(over="ignore"):
        parts.append(section(Type.MXFP4, DECODE, blocks, dequantize(blocks, Type.MXFP4)))

    out = pathlib.Path(__file__).with_name("quant_vectors.bin")
    out.write_bytes(b"CWQUANT1" + struct.pack("<I", len(parts)) + b"".join(parts))
    print(f"{out.name}: {len(parts)} sections, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
