#!/usr/bin/env python3
"""Makes families.json with the package `tokenizers`: how texts are split for gpt-4o, and WordPiece ids.

    make_families.py > families.json

split     pieces of each text by the expression of GPT-4o
wordpiece a small vocabulary as files have it (pieces that begin a word are marked, those inside are not), one that knows
          upper case, and the ids of each text in both
"""

import json
import random
import sys

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = [
    "", " ", "a", "Hello, world!", "camelCase HTTPServer XMLHttpRequest's McDonald'S",
    "don't CAN'T we'Re x'ſ 'tis o'clock ''s", "12 123 1234567 1٢३४ ½²Ⅷ 3.14e-10",
    "  leading, double  spaces   and trailing   ", "\t\ttabs\n\nlines\n \n  \r\nCRLF\r\n\n   x\u00a0y\u3000z\u2028w",
    "https://example.org/a_b-c//d/?e=f //\n/ x", "e\u0301 A\u030aB n\u0303 \u0301 \u0301A q\u0323\u0307",
    "日本ABC日 ABC日本 日ABC ａｂｃ ＡＢＣ", "Погода ГОРЫ меняетсяБыстро ǅungla ʰA Aʰ ﬁ",
    "emoji 😀 👍🏽 👩‍👩‍👧 ❤️ 1️⃣", "عام ١٩٧٣ पहाड़ों में ไทย", "fn main() {\n\tprintln!(\"{total}\");\r\n}\n",
    "snake_case SCREAMING_CASE x86_64 (Go) <b>\"x\" & 'y'</b>", "The the unaffable runner's RUNNING",
    "Příliš žluťoučký kůň. L'ÉTÉ!", "山里的天气 weather山", "a\u0000b\ufffdc\u200dd\u00ade", "x" * 101 + " y", "$5+3=8^2~|`",
]
POOL = list("abcXYZ 12.,'/\n\r\t-_") + ["\u0301", "日", "É", "ß", "😀", "'s", "'LL", "  ", "\u00a0", "ʰ", "ǅ", "٣", "й"]
generator = random.Random(7)
TEXTS += ["".join(generator.choice(POOL) for _ in range(generator.randrange(1, 24))) for _ in range(400)]

LETTERS = "abcdefghijklmnopqrstuvwxyzßøł"
WORDS = (
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(LETTERS) + ["##" + letter for letter in LETTERS]
    + list("0123456789.,'/-_!\"$+=()<>") + ["##1", "##12", "the", "un", "##aff", "##able", "run", "##ner", "##ning", "weather",
    "里", "山", "hello", "world", "##ed", "prilis", "kun", "ete", "meni", "й", "##й"]
)
CASED = WORDS + list("ABCXYZÉ") + ["##X", "##Y", "##Z", "##É", "Hello", "The", "RUN", "##N", "##I", "##G"]


def wordpiece(words, lowercase):
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    as_in_files = [w if w.startswith("[") else w[2:] if w.startswith("##") else "\u2581" + w for w in words]
    return {"tokens": as_in_files, "ids": ids}


split = pre_tokenizers.Split(Regex(GPT4O), "isolated")
pieces = [[piece for piece, _ in split.pre_tokenize_str(text)] for text in TEXTS]
both = {"lower": wordpiece(WORDS, True), "cased": wordpiece(CASED, False)}
json.dump({"texts": TEXTS, "split": pieces, "wordpiece": both}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
print()
