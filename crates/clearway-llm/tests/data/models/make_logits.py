#!/usr/bin/env python3
"""Logits of tiny random models, computed with numpy alone, for tests/recorders.rs and
tests/engine.rs.

usage: make_logits.py > logits.json        needs numpy

Weights are not stored: both sides make them from the tensor's name (see `weight`). Each model is computed
as one causal pass over all tokens, without a cache and in float32; the runtime under test fills a cache
with the first tokens and decodes the rest.
"""
import json
import sys

import numpy as np

F = np.float32
TOKENS = [3, 91, 17, 17, 60, 5, 42, 8, 77]

BASE = dict(layers=3, embd=32, ff=48, heads=4, kv=2, head=8, vocab=96, eps=1e-5, base=10000.0, rope_scale=1.0,
            halves=True, qk_norm=False, bias=False, post_norm=False, gelu=False, embd_scale=1.0, attn_scale=None,
            attn_cap=0.0, logit_cap=0.0, window=0, period=1, local_base=None, tied=False, experts=None, factors=False)
MODELS = {
    "llama": dict(halves=False),
    "llama_tied": dict(halves=False, tied=True, heads=3, kv=1, base=500000.0),
    "qwen2": dict(bias=True, base=1000000.0, eps=1e-6),
    "qwen3": dict(qk_norm=True, head=16, tied=True),
    "qwen3moe": dict(qk_norm=True, experts=dict(count=6, used=3, ff=16, shared=0, renorm=True)),
    "gemma2": dict(post_norm=True, gelu=True, embd_scale=np.sqrt(F(32)), attn_scale=0.25, attn_cap=2.0,
                   logit_cap=1.5, window=3, period=2, tied=True),
    "gemma3": dict(post_norm=True, gelu=True, embd_scale=np.sqrt(F(32)), qk_norm=True, window=4, period=3,
                   local_base=100.0, base=5000.0, rope_scale=0.125, tied=True),
    "moe_shared": dict(halves=False, experts=dict(count=8, used=2, ff=24, shared=40, renorm=False)),
    # What files of these families can say: some of the constants above are fixed by the architecture.
    "llama3_file": dict(halves=False, base=500000.0, factors=True),
    "llama_linear_file": dict(halves=False, rope_scale=0.25),
    "mistral_file": dict(halves=False, kv=1, head=16, base=1000000.0),
    "gemma2_file": dict(post_norm=True, gelu=True, embd_scale=np.sqrt(F(32)), attn_cap=2.0, logit_cap=1.5, window=3,
                        period=2, tied=True),
    "gemma3_file": dict(layers=7, post_norm=True, gelu=True, embd_scale=np.sqrt(F(32)), qk_norm=True, window=3, period=6,
                        local_base=10000.0, base=1000000.0, rope_scale=0.125, tied=True),
}


def weight(name, shape):
    """splitmix64 of FNV-1a(name) + index, as a float in [-1/2, 1/2)."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(h) + np.arange(int(np.prod(shape)), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(F) / F(2**24) - F(0.5)
    u = u.reshape(shape)
    if name.endswith("norm.weight"):
        return F(1) + F(0.5) * u
    if name.endswith("bias"):
        return u
    return u * (F(4) / np.sqrt(F(shape[-1])))


def rms(x, eps, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + F(eps)) * w


def rotate(x, pos, base, halves, factors):
    """x[T, H, D] as complex numbers turned by pos / base^(2i/D), over a factor of each i where there are some."""
    half = x.shape[-1] // 2
    angle = pos[:, None] * np.power(F(base), -np.arange(half, dtype=F) / F(half))[None, :]
    if factors:
        angle = angle / (F(1) + F(0.75) * np.arange(half, dtype=F))[None, :]
    turn = np.exp(1j * angle)[:, None, :]
    if halves:
        z = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([z.real, z.imag], -1).astype(F)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x.shape).astype(F)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def act(c, x):
    if c["gelu"]:
        return F(0.5) * x * (F(1) + np.tanh(np.sqrt(F(2 / np.pi)) * (x + F(0.044715) * x**3)))
    return x / (F(1) + np.exp(-x))


def attention(c, i, x, pos):
    t, p = len(pos), f"blk.{i}."
    def proj(part, heads):
        y = x @ weight(p + part + ".weight", (heads * c["head"], c["embd"])).T
        if c["bias"]:
            y = y + weight(p + part + ".bias", (heads * c["head"],))
        return y.reshape(t, heads, c["head"])
    q, k, v = proj("attn_q", c["heads"]), proj("attn_k", c["kv"]), proj("attn_v", c["kv"])
    if c["qk_norm"]:
        q = rms(q, c["eps"], weight(p + "attn_q_norm.weight", (c["head"],)))
        k = rms(k, c["eps"], weight(p + "attn_k_norm.weight", (c["head"],)))
    local = c["window"] and (i + 1) % c["period"] != 0
    own_base = local and c["local_base"] is not None
    base = c["local_base"] if own_base else c["base"]
    scaled = pos.astype(F) * F(1.0 if own_base else c["rope_scale"])
    q, k = (rotate(y, scaled, base, c["halves"], c["factors"]) for y in (q, k))
    group = c["heads"] // c["kv"]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    score = np.einsum("thd,shd->hts", q, k) * F(c["attn_scale"] or 1 / np.sqrt(c["head"]))
    if c["attn_cap"]:
        score = F(c["attn_cap"]) * np.tanh(score / F(c["attn_cap"]))
    distance = pos[:, None] - pos[None, :]
    hidden = distance < 0
    if local:
        hidden |= distance >= c["window"]
    score = np.where(hidden[None], -np.inf, score)
    y = np.einsum("hts,shd->thd", softmax(score), v).reshape(t, -1).astype(F)
    return y @ weight(p + "attn_output.weight", (c["embd"], c["heads"] * c["head"])).T


def gated(c, i, x, names, size):
    p = f"blk.{i}."
    gate = x @ weight(p + names[0] + ".weight", (size, c["embd"])).T
    up = x @ weight(p + names[1] + ".weight", (size, c["embd"])).T
    return (act(c, gate) * up) @ weight(p + names[2] + ".weight", (c["embd"], size)).T


def experts(c, i, x):
    e, p = c["experts"], f"blk.{i}."
    logits = x @ weight(p + "ffn_gate_inp.weight", (e["count"], c["embd"])).T
    share = softmax(logits)
    gate = weight(p + "ffn_gate_exps.weight", (e["count"], e["ff"], c["embd"]))
    up = weight(p + "ffn_up_exps.weight", (e["count"], e["ff"], c["embd"]))
    down = weight(p + "ffn_down_exps.weight", (e["count"], c["embd"], e["ff"]))
    y = np.zeros_like(x)
    for t in range(len(x)):
        best = np.argsort(-share[t], kind="stable")[: e["used"]]
        w = share[t][best]
        if e["renorm"]:
            w = w / w.sum()
        for expert, part in zip(best, w):
            h = act(c, gate[expert] @ x[t]) * (up[expert] @ x[t])
            y[t] += part * (down[expert] @ h)
    if e["shared"]:
        y = y + gated(c, i, x, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], e["shared"])
    return y


def logits(c):
    pos = np.arange(len(TOKENS))
    table = weight("token_embd.weight", (c["vocab"], c["embd"]))
    x = table[TOKENS] * F(c["embd_scale"])
    for i in range(c["layers"]):
        p = f"blk.{i}."
        vec = lambda part: weight(p + part + ".weight", (c["embd"],))
        y = attention(c, i, rms(x, c["eps"], vec("attn_norm")), pos)
        x = x + (rms(y, c["eps"], vec("post_attention_norm")) if c["post_norm"] else y)
        y = rms(x, c["eps"], vec("ffn_norm"))
        y = experts(c, i, y) if c["experts"] else gated(c, i, y, ["ffn_gate", "ffn_up", "ffn_down"], c["ff"])
        x = x + (rms(y, c["eps"], vec("post_ffw_norm")) if c["post_norm"] else y)
    x = rms(x, c["eps"], weight("output_norm.weight", (c["embd"],)))
    head = table if c["tied"] else weight("output.weight", (c["vocab"], c["embd"]))
    y = x @ head.T
    return F(c["logit_cap"]) * np.tanh(y / F(c["logit_cap"])) if c["logit_cap"] else y


def main():
    models = {}
    for name, changes in MODELS.items():
        y = logits({**BASE, **changes})
        assert np.isfinite(y).all() and y.dtype == F, name
        models[name] = [[float(f"{v:.6g}") for v in row] for row in y]
    json.dump({"tokens": TOKENS, "logits": models}, sys.stdout, separators=(",", ":"))
    print()


main()
