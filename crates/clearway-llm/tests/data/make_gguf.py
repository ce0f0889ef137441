#!/usr/bin/env python3
"""Write the small GGUF files that tests/gguf.rs reads, with the independent `gguf` package.

usage: make_gguf.py [FOLDER]            needs: pip install gguf numpy (made with gguf 0.19.0)

python.gguf               every metadata type, an alignment of 64, a tensor of every type
python-0000N-of-00003.gguf   the same package's idea of a split model, two tensors a part
"""
import pathlib
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from gguf import GGUFWriter, constants

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4]


def pattern(n, salt):
    """The bytes the test expects in tensor number `salt`."""
    i = np.arange(n, dtype=np.uint64)
    return ((i * 31 + 7 * salt) % 256).astype(np.uint8)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def one_file():
    w = GGUFWriter(FOLDER / "python.gguf", "llama")
    w.add_custom_alignment(64)
    w.add_uint8("test.u8", 200)
    w.add_int8("test.i8", -100)
    w.add_uint16("test.u16", 60000)
    w.add_int16("test.i16", -30000)
    w.add_uint32("test.u32", 4000000000)
    w.add_int32("test.i32", -2000000000)
    w.add_float32("test.f32", 0.1)
    w.add_uint64("test.u64", 2**64 - 1)
    w.add_int64("test.i64", -(2**63))
    w.add_float64("test.f64", 0.1)
    w.add_bool("test.true", True)
    w.add_bool("test.false", False)
    w.add_string("test.text", "grün 🙂 \n")
    w.add_key_value("test.bytes", b"\xff\xfe\x00", V.STRING)
    w.add_array("test.array.i32", [1, -2, 3])
    w.add_key_value("test.array.u16", [1, 65535], V.ARRAY, V.UINT16)
    w.add_key_value("test.array.i8", [-1, 127], V.ARRAY, V.INT8)
    w.add_array("test.array.u8", b"\x00\x80\xff")
    w.add_key_value("test.array.u64", [2**40, 5], V.ARRAY, V.UINT64)
    w.add_array("test.array.f32", [0.5, -1.25, 1e-30])
    w.add_key_value("test.array.f64", [0.5, 1e300], V.ARRAY, V.FLOAT64)
    w.add_array("test.array.bool", [True, False, True])
    w.add_key_value("test.array.bytes", [b"\xf0\x9f", b"", "é".encode()], V.ARRAY, V.STRING)
    w.add_array("test.array.nested", [[[1, 2], [3]], [[4, 5, 6]]])
    w.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(300)])
    w.add_array("tokenizer.ggml.scores", [i / 4 for i in range(300)])
    for salt, q in enumerate(TYPES):
        per, size = constants.GGML_QUANT_SIZES[q]
        # Two rows of one super-block each (or of 256 elements), and a third dimension of one.
        w.add_tensor(f"tensor.{q.name}", pattern(2 * 256 // per * size, salt).reshape(1, 2, -1), raw_dtype=q)
    w.add_tensor("values", np.linspace(-1, 1, 9, dtype=np.float32))
    finish(w)


def split():
    w = GGUFWriter(FOLDER / "python.gguf", "llama", split_max_tensors=2)
    w.add_uint32("llama.block_count", 5)
    for i in range(5):
        w.add_tensor(f"blk.{i}.weight", np.full((4, i + 1), i, np.float32))
    finish(w)


split()
one_file()
