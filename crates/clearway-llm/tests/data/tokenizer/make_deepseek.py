#!/usr/bin/env python3
"""Makes deepseek.json with the package `regex`: how texts are split by the rules of DeepSeek.

    make_deepseek.py > deepseek.json

Each rule is a list of expressions as the models' own tokenizers have them. An expression is applied to every piece that the one
before it left: what it matches becomes a piece, and so does what lies between.
"""

import json
import random
import sys

import regex

CASED = (
    r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376\u0377"
    r"\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5"
    r"\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D"
    r"\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4"
    r"\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D"
    r"\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4"
    r"\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06"
    r"\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB"
    r"\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
)
HAN = r"[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
RULES = {
    "deepseek-llm": [
        r"[\r\n]",
        rf"\s?[{CASED}]+",
        r"\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+",
        r"\s+\Z",
        HAN,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        r"[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
}

TEXTS = json.load(open("families.json"))["texts"][:23] + [
    "你好，世界！今天3点 我想在apple工作1314151天～", "カタカナ・ひらがな゠゛ー漢字 ABC漢字 かな123", "안녕하세요 세계 2024년", "naïve Helloñ ñHello _x ñ_ñ",
    "ｆｕｌｌ　ｗｉｄｔｈ：１２３。、", "“quoted” ‘x’ — … «y»", "a \u3000 b\u3000", "x   \ty \n \n z  ", "(foo) [bar]{baz} @user #tag -flag $HOME",
    "\u0000\u0000a \u200b\u200bb \u0301a", "ʔʕ ƻ ǀǁ ͵ ʹ", "ΑΒΓ ἀἁ Ωμ K Å ⅷ Ⅷ", "\ud55c\uae00 ก ข ä\u0308",
]
POOL = list("abXY 12.,'/\n\r\t-_(") + ["  ", "日", "中文", "か", "ナ", "・", "゛", "한", "é", "ƻ", "й", "\u0301", "，", "。", "\u3000", "“",
    "😀", "+", "٣", "½", "\u0000", "\u200b", "ａ", "：", "\u00a0", "ก"]
generator = random.Random(11)
TEXTS += ["".join(generator.choice(POOL) for _ in range(generator.randrange(1, 20))) for _ in range(300)]


def isolated(pieces, expression):
    for piece in pieces:
        at = 0
        for found in expression.finditer(piece):
            if found.start() > at:
                yield piece[at:found.start()]
            if found.end() > found.start():
                yield found.group()
            at = found.end()
        if at < len(piece):
            yield piece[at:]


def split(text, expressions):
    pieces = [text]
    for expression in expressions:
        pieces = list(isolated(pieces, expression))
    return pieces


splits = {}
for name, expressions in RULES.items():
    compiled = [regex.compile(expression) for expression in expressions]
    splits[name] = [split(text, compiled) for text in TEXTS]
json.dump({"texts": TEXTS, "split": splits}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
print()
