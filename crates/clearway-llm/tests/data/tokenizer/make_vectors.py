#!/usr/bin/env python3
"""Makes the tokenizer test vectors beside this script with the packages `tokenizers`, `sentencepiece` and `protobuf`.

    make_vectors.py                     writes vectors.json and random.bin
    make_vectors.py real KIND FILE...   writes real.json; KIND FILE is llama3 or qwen2.5 with a tokenizer.json, or
                                        smollm2 with a GGUF file (package `gguf`)

vectors.json  small vocabularies trained here, texts, and the ids of each text in each vocabulary
random.bin    per vocabulary and random string, 32 bits of the FNV-1a hash of its ids; strings come from a generator that
              the tests repeat
real.json     ids of texts in published vocabularies, with only those tokens and merges that the texts can reach
"""

import json
import pathlib
import struct
import sys
import tempfile
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
RANDOM_STRINGS = 3000

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def split(*patterns):
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE = {
    "default": lambda: split(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "llama-bpe": lambda: split(LLAMA3),
    "qwen2": lambda: split(QWEN2),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}

# Sentences written for this file, so that merges appear in every script.
CORPUS = """
The weather in the mountains changes quickly, and the travellers who don't carry a coat are the first to turn back.
It's said that she'll come when they've finished; we're not sure he'd agree, but I'm certain you can't ask again.
IT'S LOUD HERE, THEY'LL SAY, AND WE'VE HEARD IT BEFORE. In 1984 there were 12,345 readers; by 2024 about 6789000.
Le garçon mangeait des crêpes près de la forêt, où l'été était déjà passé. Die Brücke über den Fluß wird täglich geprüft.
Zażółć gęślą jaźń. Çalışkan öğrenciler şimdi ığdır'a gidiyor. El niño soñó con el pingüino. Příliš žluťoučký kůň.
Погода в горах меняется быстро, и путешественники берут с собой тёплые вещи. Это было в 1905 году, кажется.
Ο καιρός στα βουνά αλλάζει γρήγορα και οι ταξιδιώτες παίρνουν μαζί τους ζεστά ρούχα. Ήταν το 1821.
الطقس في الجبال يتغير بسرعة والمسافرون يحملون معهم ملابس دافئة. كان ذلك في عام ١٩٧٣ تقريبا.
पहाड़ों में मौसम जल्दी बदलता है और यात्री अपने साथ गरम कपड़े ले जाते हैं। यह सन् १९४७ की बात है।
山里的天气变化很快，旅行的人总是带着暖和的衣服。这是二〇二四年的事情。山の天気は変わりやすいので、旅人は暖かい服を持っていく。
산의 날씨는 빨리 변하기 때문에 여행자들은 따뜻한 옷을 가지고 다닌다.
fn main() {\n    let total: u64 = (1..=100).filter(|n| n % 3 == 0).sum();\n\tprintln!("{total}");\r\n}\n\n\n
def f(x, *args, **kw):\n        return [i ** 2 for i in range(x) if i != 0x1F] # comment\n    \n    <div class="a">&nbsp;</div>\n
Emoji 😀😃👍🏽 👩‍👩‍👧‍👦 ❤️ 🇩🇪 and signs € £ ¥ © ½ ² Ⅷ → ∑ √ … — “quoted” ‘so’ «oui».
""" * 4

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "don't can't won't it's we're they've I'm she'll he'd",
    "DON'T CAN'T IT'S WE'RE THEY'VE I'M SHE'LL HE'D Don'T we'Re x'ſ",
    "'s 't 're've'm'll'd'S'LL 'tis rock'n'roll o'clock ''s",
    "0 1 12 123 1234 12345 123456 1234567 1,234,567.89 3.14159e-10 0xDEADBEEF 1٢३४五Ⅷ½²",
    "  leading, double  spaces   triple    and trailing   ",
    "\t\ttabs\tand\n\nnewlines\n \n  \r\nCRLF\r\n\r\n\n   x\u00a0y\u3000z\u2028w\u0085v",
    "a\n", "a\n\n\nb", "  \n  a", ".\n\n.\r\r", " \t \t", "\n", "\r\n \r\n",
    "emoji 😀 👍🏽 👩‍👩‍👧‍👦 ❤️‍🔥 🇩🇪🇫🇷 🏴󠁧󠁢󠁥󠁮󠁧󠁿 1️⃣ done",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. L'été où ça?",
    "e\u0301 A\u030a n\u0303 \u1100\u1161\u11a8 \u212b \u0958 q\u0323\u0307 (decomposed)",
    "Погода в горах меняется быстро, ёлка — 1905 г.",
    "Ο καιρός αλλάζει· «γρήγορα» το 1821;",
    "الطقس يتغير بسرعة، كان ذلك في عام ١٩٧٣. لا إله",
    "पहाड़ों में मौसम जल्दी बदलता है। क्षत्रिय १९४७",
    "山里的天气变化很快。山の天気は変わりやすい。산의 날씨는 빨리 변한다。ｆｕｌｌ　ｗｉｄｔｈ",
    "עברית ไทย ქართული հայերեն አማርኛ தமிழ் 𝒜𝓁𝓅𝒽𝒶 𐍈𐌰 𠜎𠜱",
    'fn main() {\n    let x = vec![1u8; 0x10];\n\tif x.len() >= 2 && !x.is_empty() { println!("{:?}", x); }\n}\n',
    "def f(a, *b, **c):\n    return [i ** 2 for i in a if i != 3]  # ok\n\n\nclass _X(object): pass",
    '<html>\n  <p class="x">&amp; $5 + 3 = 8 ^ 2 ~ | ` `` ``` </p>\n</html>',
    "https://example.org/a_b-c/d?e=f&g=%20#h user@example.org C:\\dir\\file.txt",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE x86_64 utf8mb4",
    "\u0000\u0001\u001f\u007f\u0080\u009f\u00ad\u200b\u200d\ufeff\ufffd\ue000\U0010ffff",
    "\u2581under\u2581bars\u2581\u2581 and spaces \u2581",
    "<s>not a control token</s> <unk> <0x0A> <sep>user<sep> defined <|end|><|end|>x <|end",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "thethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethe",
    "the" * 3000,
    "山里的天气变化很快" * 500,
    " " * 2000 + "x" + "\n" * 1000 + "1" * 1000,
    "".join(chr(0x61 + (i * i * 7 + i // 5) % 26) for i in range(5000)),
]

POOLS = [
    list("etaoinshrdlucmfwypvbgkjqxz"),
    list("ETAOINSHRDLU"),
    ["the", "ing", "and", "er", "ti", "on", " the", " of", "'", "in", "ght", "qu"],
    list("0123456789"),
    [" ", " ", " ", "  ", "\n", "\t", "\r\n", "   ", "\r", "\u000b", "\u000c"],
    ["\u00a0", "\u3000", "\u2028", "\u0085", "\u1680", "\u2009", "\u202f", "\u205f"],
    list(".,;:!?\"'()[]{}<>@#$%^&*-_=+/\\|~`"),
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'vE", "'M", "'Ll", "'D", "'ſ", "'r", "'l", "’s"],
    list("àâçéèêëîïôùûüÿñáíóúöäßøåæœžščřđğışþðł"),
    ["e\u0301", "\u0301", "\u0308", "o\u0302\u0301", "\u1100\u1161", "\u11a8", "\u212b", "\u0344", "\u0f71\u0f72"],
    list("абвгдежзийклмнопрстуфхцчшщъыьэюяЁЖ"),
    list("αβγδεζηθικλμνξοπρστυφχψωςάέ"),
    list("ابتثجحخدذرزسشصضطظعغفقكلمنهويءة"),
    ["क", "ख", "ग", "म", "न", "र", "्", "ा", "ि", "ी", "ं", "़", "।", "क्ष"],
    list("山里的天气变化很快旅行人の天気はアイウ산의날씨는"),
    ["😀", "👍", "🏽", "\u200d", "\ufe0f", "👩", "❤", "🇩", "🇪", "🏴", "\U000e0067", "©"],
    ["١", "٢", "१", "२", "五", "Ⅷ", "½", "²", "①", "𝟗", "〇", "৪"],
    ["\u2581", "\u0000", "\u001b", "\u007f", "\u00ad", "\u200b", "\ufeff", "\ufffd", "\ue000", "\U0010fffd"],
]


class Random:
    """xorshift64*, as in the tests."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        x = self.state
        x ^= x >> 12
        x = (x ^ (x << 25)) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF) % n


def assigned_pool():
    """Characters from all over Unicode whose category has long been settled."""
    rng = Random(2024)
    pool = []
    while len(pool) < 1500:
        cp = rng.below(0x32000)
        if unicodedata.category(chr(cp)) not in ("Cn", "Cs", "Co") and unicodedata.ucd_3_2_0.category(chr(cp)) != "Cn":
            pool.append(chr(cp))
    return pool


def random_strings(pools):
    rng = Random(0x5EED)
    for _ in range(RANDOM_STRINGS):
        length = rng.below(40)
        yield "".join((lambda pool: pool[rng.below(len(pool))])(pools[rng.below(len(pools))]) for _ in range(length))


def fnv(ids):
    h = 0xCBF29CE484222325
    for byte in struct.pack(f"<{len(ids)}I", *ids):
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (h ^ (h >> 32)) & 0xFFFFFFFF


def stored(ids):
    """Ids as they are, or length and hash where there are many."""
    return ids if len(ids) <= 400 else {"len": len(ids), "fnv": fnv(ids)}


def train_bpe(pre):
    tokenizer = Tokenizer(models.BPE())
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = PRE[pre]()
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    if pre == "llama-bpe":
        # Tokens that no merge makes, which this family takes whole.
        for word in ["Ġquick", "Ġbrown", "jumps", "the" * 31, "Ġgęślą"]:
            mapped = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
                word.replace("Ġ", " ")
            )[0][0]
            vocab.setdefault(mapped, len(vocab))
    tokenizer.model = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe")
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<|end", normalized=False)])
    tokenizer.add_tokens([AddedToken("<sep>", normalized=False)])
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [{"<|end|>": 3, "<|end": 3, "<sep>": 4}.get(t, 1) for t in tokens]
    entry = {
        "name": pre,
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "types": types,
        "merges": [" ".join(m) for m in merges],
    }
    return entry, lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def train_spm(name, **options):
    entry = {
        "name": name,
        "model": "llama",
        "add_space_prefix": options.get("add_dummy_prefix", True),
        "remove_extra_whitespaces": options.get("remove_extra_whitespaces", False),
    }
    drop_every = options.pop("drop_every", None)
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder, "corpus.txt")
        corpus.write_text(CORPUS, encoding="utf-8", newline="")
        sentencepiece.SentencePieceTrainer.train(
            **{
                "input": str(corpus),
                "model_prefix": str(pathlib.Path(folder, "m")),
                "model_type": "bpe",
                "vocab_size": 900,
                "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False,
                "byte_fallback": True,
                "split_digits": True,
                "character_coverage": 0.98,
                "minloglevel": 2,
                **options,
            }
        )
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(pathlib.Path(folder, "m.model").read_bytes())
    for i, piece in enumerate(model.pieces):
        if drop_every and len(piece.piece) > 1 and piece.type == piece.NORMAL and i % drop_every == 0:
            piece.type = piece.UNUSED
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    entry |= {
        "tokens": [piece.piece for piece in model.pieces],
        "types": [piece.type for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
    }
    return entry, lambda text: processor.encode(text, out_type=int)


def make_small():
    pools = POOLS + [assigned_pool()]
    vocabularies = [train_bpe(pre) for pre in PRE]
    vocabularies += [
        train_spm("spm", allow_whitespace_only_pieces=True),
        train_spm("spm-no-prefix", add_dummy_prefix=False, user_defined_symbols=["<sep>", "▁▁", "▁▁▁", "▁▁▁▁", "<|end|>"]),
        train_spm("spm-unknown", byte_fallback=False, remove_extra_whitespaces=True),
        train_spm("spm-across-spaces", split_by_whitespace=False, allow_whitespace_only_pieces=True),
        train_spm("spm-unused", drop_every=3),
    ]
    out = {"texts": TEXTS, "pools": pools, "random_strings": RANDOM_STRINGS, "vocabularies": []}
    hashes = bytearray()
    for entry, encode in vocabularies:
        entry["ids"] = [stored(encode(text)) for text in TEXTS]
        for text in random_strings(pools):
            hashes += struct.pack("<I", fnv(encode(text)))
        out["vocabularies"].append(entry)
    write("vectors.json", out)
    (HERE / "random.bin").write_bytes(hashes)


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # One vocabulary a line keeps differences readable.
    (HERE / name).write_text(text.replace(',{"name"', ',\n{"name"') + "\n", encoding="utf-8")


def load_real(kind, path):
    if kind != "smollm2":
        return Tokenizer.from_file(path)
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = PRE["smollm"]()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return tokenizer


CHAT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
REAL = {
    "llama3": ("llama-bpe", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"),
    "qwen2.5": ("qwen2", CHAT),
    "smollm2": ("smollm", CHAT),
}


def make_real(arguments):
    texts = [t for t in TEXTS if len(t) < 500]
    out = []
    for kind, path in zip(arguments[::2], arguments[1::2]):
        pre, chat = REAL[kind]
        tokenizer = load_real(kind, path)
        model = json.loads(tokenizer.to_str())["model"]
        vocab = model["vocab"]
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
        own = texts + [chat]
        normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else lambda t: t
        words = {w for t in own for w, _ in PRE[pre]().pre_tokenize_str(normalize(t))}
        parts = {w[i:j] for w in words for i in range(len(w)) for j in range(i + 1, len(w) + 1)}
        needed = {t for t in pre_tokenizers.ByteLevel.alphabet() if t in vocab} | {w for w in words if w in vocab}
        used = {}
        for rank, (left, right) in enumerate(merges):
            if left + right in parts:
                used[rank] = f"{left} {right}"
                needed |= {left, right, left + right}
        ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in own]
        specials = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
        shown = {t for t in specials if any(specials[t] in row for row in ids)}
        out.append(
            {
                "name": kind,
                "pre": pre,
                "size": tokenizer.get_vocab_size(),
                "tokens": {vocab[t]: t for t in sorted(needed, key=vocab.get) if t not in shown},
                "special": {specials[t]: t for t in sorted(shown)},
                "merges": list(used.values()),
                "texts": own[-1:],
                "ids": ids,
            }
        )
    write("real.json", out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["real"]:
        make_real(sys.argv[2:])
    else:
        make_small()
