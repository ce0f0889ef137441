"""A model file of a few kilobytes with random weights and an alphabet of bytes, for tests that need no sense."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

Metadata = dict[str, tuple[int, bytes]]
UINT32, FLOAT32, STRING, ARRAY, INT32 = 4, 6, 8, 9, 5
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def byte_tokens() -> list[str]:
    """The characters that byte-level vocabularies write bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write(path: Path, *, embd: int = 32, layers: int = 1, heads: int = 2, ff: int = 64, context: int = 128) -> Path:
    """Writes the file."""
    tokens = [*byte_tokens(), "th", "<end>"]
    random = np.random.default_rng(0)

    def strings(values: list[str]) -> tuple[int, bytes]:
        return ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))

    def u32(value: int) -> tuple[int, bytes]:
        return UINT32, struct.pack("<I", value)

    metadata: Metadata = {
        "general.architecture": (STRING, text("llama")),
        "general.name": (STRING, text("tiny")),
        "llama.block_count": u32(layers),
        "llama.context_length": u32(context),
        "llama.embedding_length": u32(embd),
        "llama.feed_forward_length": u32(ff),
        "llama.attention.head_count": u32(heads),
        "llama.attention.head_count_kv": u32(heads),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, struct.pack("<f", 1e-5)),
        "llama.rope.dimension_count": u32(embd // heads),
        "llama.rope.freq_base": (FLOAT32, struct.pack("<f", 10000.0)),
        "tokenizer.ggml.model": (STRING, text("gpt2")),
        "tokenizer.ggml.pre": (STRING, text("gpt-2")),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": (
            ARRAY,
            struct.pack("<IQ", INT32, len(tokens)) + struct.pack(f"<{len(tokens)}i", *[1] * (len(tokens) - 1), 3),
        ),
        "tokenizer.ggml.merges": strings(["t h"]),
        "tokenizer.ggml.eos_token_id": u32(len(tokens) - 1),
        "tokenizer.chat_template": (STRING, text(TEMPLATE)),
    }
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int) -> None:
        tensors[name] = random.normal(0, cols**-0.5, (rows, cols)).astype(np.float32)

    matrix("token_embd.weight", len(tokens), embd)
    matrix("output.weight", len(tokens), embd)
    tensors["output_norm.weight"] = np.ones(embd, np.float32)
    for layer in range(layers):
        block = f"blk.{layer}."
        tensors[block + "attn_norm.weight"] = np.ones(embd, np.float32)
        tensors[block + "ffn_norm.weight"] = np.ones(embd, np.float32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}{name}.weight", embd, embd)
        matrix(block + "ffn_gate.weight", ff, embd)
        matrix(block + "ffn_up.weight", ff, embd)
        matrix(block + "ffn_down.weight", embd, ff)
    return put(path, metadata, tensors)


def write_adapter(path: Path, *, seed: int = 0, embd: int = 32, ff: int = 64, rank: int = 2) -> Path:
    """Writes an adapter (LoRA) of the first layer's queries and feed-forward part."""
    random = np.random.default_rng(seed)
    about = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    tensors = {}
    for name, rows, cols in (("attn_q", embd, embd), ("ffn_down", embd, ff)):
        tensors[f"blk.0.{name}.weight.lora_a"] = random.normal(0, 0.5, (rank, cols)).astype(np.float32)
        tensors[f"blk.0.{name}.weight.lora_b"] = random.normal(0, 0.5, (rows, rank)).astype(np.float32)
    return put(path, {key: (STRING, text(value)) for key, value in about.items()}, tensors)


def put(path: Path, metadata: Metadata, tensors: dict[str, np.ndarray]) -> Path:
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        head += text(key) + struct.pack("<I", kind) + value
    data = b""
    for name, values in tensors.items():
        dims = values.shape[::-1]
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", 0, len(data))
        data += values.tobytes()
        data += b"\0" * (-len(data) % 32)
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + data)
    return path
