//! The tokenizer against ids made by the reference packages; see `data/tokenizer/make_vectors.py`.

use std::path::Path;
use std::time::{Duration, Instant};

use clearway_llm::text::{
    DecodeOptions, EncodeOptions, PreTokenizer, StreamDecoder, TextError, TokenKind, Tokenizer,
    Vocab,
};
use serde_json::Value;

const VECTORS: &str = include_str!("data/tokenizer/vectors.json");
const RANDOM: &[u8] = include_bytes!("data/tokenizer/random.bin");
const REAL: &str = include_str!("data/tokenizer/real.json");

/// The references parse special tokens and add nothing around the text.
const REFERENCE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

#[test]
fn small_vocabularies_give_the_reference_ids() {
    let data = Vectors::load();
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let options = vocabulary.reference_options();
        for (text, expected) in data.texts.iter().zip(&vocabulary.ids) {
            let ids = tokenizer.encode(text, options).unwrap();
            match expected.as_array() {
                Some(expected) => {
                    assert_eq!(ids, integers(expected), "{}: {text:?}", vocabulary.name)
                }
                None => {
                    let found = (ids.len() as u64, u64::from(fnv(&ids)));
                    let expected = (&expected["len"], &expected["fnv"]);
                    let expected = (expected.0.as_u64().unwrap(), expected.1.as_u64().unwrap());
                    assert_eq!(found, expected, "{}: {:.40}…", vocabulary.name, text);
                }
            }
        }
    }
}

#[test]
fn random_strings_give_the_reference_ids() {
    let data = Vectors::load();
    let strings = data.random_strings();
    let mut hashes = RANDOM.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let options = vocabulary.reference_options();
        for text in &strings {
            let ids = tokenizer.encode(text, options).unwrap();
            let name = &vocabulary.name;
            assert_eq!(Some(fnv(&ids)), hashes.next(), "{name}: {text:?} gave {ids:?}");
        }
    }
    assert_eq!(hashes.next(), None);
}

#[test]
fn decoding_gives_the_text_back() {
    let data = Vectors::load();
    let texts = data.random_strings();
    for vocabulary in &data.vocabularies {
        if ["qwen2", "spm-unknown"].contains(&&*vocabulary.name) {
            continue; // these change the text before they encode it
        }
        let tokenizer = vocabulary.tokenizer();
        let options = DecodeOptions { strip_prefix: true, ..DecodeOptions::default() };
        for text in texts.iter().chain(&data.texts) {
            let ids = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
            let expected = match tokenizer.is_sentencepiece() {
                true => text.replace('\u{2581}', " "),
                false => text.clone(),
            };
            // After a user-defined token the space that starts a text is put in again.
            if vocabulary.name == "spm" && text.contains("<sep>") {
                continue;
            }
            let decoded = tokenizer.decode(&ids, options).unwrap();
            assert_eq!(String::from_utf8(decoded).unwrap(), expected, "{}", vocabulary.name);
        }
    }
}

#[test]
fn a_stream_never_splits_a_character_and_adds_up_to_the_lossy_text() {
    let data = Vectors::load();
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let mut rng = Random(99);
        for round in 0..400 {
            let strip_prefix = round % 2 == 0;
            let options = DecodeOptions { skip_special: round % 3 == 0, strip_prefix };
            // Mostly single bytes, so that characters of every length come together and fall apart.
            let ids: Vec<u32> = (0..rng.below(60))
                .map(|_| match rng.below(4) {
                    0 => rng.below(tokenizer.len() as u64) as u32,
                    _ => rng.below(260) as u32,
                })
                .collect();
            let mut stream = StreamDecoder::new(&tokenizer, options);
            let mut text = String::new();
            for &id in &ids {
                text += &stream.push(id).unwrap();
            }
            text += &stream.finish();
            let whole = tokenizer.decode(&ids, options).unwrap();
            assert_eq!(text, String::from_utf8_lossy(&whole), "{}: {ids:?}", vocabulary.name);
        }
        // Text that is whole comes out as soon as its last byte does.
        for text in ["naïve 山 😀 क्ष", "👩‍👩‍👧‍👦", "Ж"] {
            let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
            let ids = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
            for &id in &ids {
                stream.push(id).unwrap();
            }
            assert_eq!(stream.finish(), "", "{}: {text}", vocabulary.name);
        }
    }
}

#[test]
fn published_vocabularies_give_the_reference_ids() {
    for model in RealModel::load() {
        let tokenizer = model.subset();
        assert_eq!(tokenizer.skipped_merges(), 0);
        model.check(&tokenizer);
    }
}

/// The whole of a published vocabulary, where `CLEARWAY_TOKENIZER_LLAMA3` or `CLEARWAY_TOKENIZER_QWEN25` names its
/// `tokenizer.json`.
#[test]
fn whole_published_vocabularies_give_the_reference_ids() {
    for (name, variable) in
        [("llama3", "CLEARWAY_TOKENIZER_LLAMA3"), ("qwen2.5", "CLEARWAY_TOKENIZER_QWEN25")]
    {
        let Some(path) = std::env::var_os(variable) else {
            eprintln!("skipped: {variable} is not set");
            continue;
        };
        let model = RealModel::load().into_iter().find(|m| m.name == name).unwrap();
        let file = Owned::from_tokenizer_json(Path::new(&path), &model.pre);
        model.check(&file.tokenizer());
    }
}

#[test]
fn special_tokens_are_parsed_only_when_asked() {
    let data = Vectors::load();
    for name in ["gpt-2", "llama-bpe"] {
        let tokenizer = data.vocabulary(name).tokenizer();
        let (end, sep) =
            (tokenizer.token_id("<|end|>").unwrap(), tokenizer.token_id("<sep>").unwrap());
        let text = "a<|end|>b<sep>c";
        let parsed = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert!(parsed.contains(&end) && parsed.contains(&sep), "{parsed:?}");
        let plain = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
        assert!(!plain.contains(&end) && plain.contains(&sep), "{plain:?}");
        assert_eq!(tokenizer.token_kind(end), Some(TokenKind::Control));
        assert_eq!(tokenizer.token_bytes(end), Some(&b"<|end|>"[..]));
        let shown = tokenizer.decode(&parsed, DecodeOptions::default()).unwrap();
        assert_eq!(shown, text.as_bytes());
        let skip = DecodeOptions { skip_special: true, strip_prefix: false };
        assert_eq!(tokenizer.decode(&parsed, skip).unwrap(), b"ab<sep>c");
        assert!(tokenizer.is_end(end) && !tokenizer.is_end(sep));
    }
    let spm = data.vocabulary("spm").tokenizer();
    let parsed = spm.encode("<s>x</s> y", REFERENCE).unwrap();
    assert_eq!((parsed[0], spm.bos(), spm.eos()), (1, Some(1), Some(2)));
    assert!(parsed.contains(&2));
    assert!(!spm.encode("<s>x</s>", EncodeOptions::PLAIN).unwrap().contains(&1));
}

#[test]
fn bos_and_eos_come_only_where_the_file_asks() {
    let data = Vectors::load();
    let mut bpe = data.vocabulary("gpt-2").clone();
    let first = |v: &Owned, text: &str| v.tokenizer().encode(text, EncodeOptions::PROMPT).unwrap();
    let plain = first(&bpe, "a");
    bpe.bos = Some(800);
    assert_eq!(first(&bpe, "a"), plain, "no add_bos_token: nothing is added");
    bpe.add_bos = Some(true);
    bpe.eos = Some(801);
    bpe.add_eos = Some(true);
    assert_eq!(first(&bpe, "a"), [&[800], &plain[..], &[801]].concat());
    assert_eq!(first(&bpe, ""), [800, 801]);
    assert_eq!(bpe.tokenizer().encode("a", EncodeOptions::PLAIN).unwrap(), plain);

    // Llama 3 files leave the key out and mean yes.
    let mut llama = data.vocabulary("llama-bpe").clone();
    llama.bos = Some(805);
    let tokenizer = llama.tokenizer();
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode("a", EncodeOptions::PROMPT).unwrap()[0], 805);
    let text = String::from_utf8(tokenizer.token_bytes(805).unwrap().to_vec()).unwrap();
    let chat = tokenizer.encode_chat(&format!("{text}a")).unwrap();
    assert_eq!(chat.iter().filter(|&&id| id == 805).count(), 1, "a template's BOS is not doubled");
    assert_eq!(tokenizer.encode_chat("a").unwrap()[0], 805);
    llama.add_bos = Some(false);
    assert_eq!(llama.tokenizer().encode("a", EncodeOptions::PROMPT).unwrap(), [plain[0]]);

    let spm = data.vocabulary("spm").tokenizer();
    assert_eq!(spm.encode("", EncodeOptions::PROMPT).unwrap(), [1]);
}

#[test]
fn vocabularies_that_cannot_work_are_refused() {
    let data = Vectors::load();
    let refused = |name: &str, change: &dyn Fn(&mut Owned)| {
        let mut vocabulary = data.vocabulary(name).clone();
        change(&mut vocabulary);
        Tokenizer::new(&vocabulary.vocab()).map(drop).unwrap_err()
    };
    let empty = |v: &mut Owned| {
        v.tokens.clear();
        v.types = None;
        v.scores = None;
    };
    assert_eq!(refused("gpt-2", &empty), TextError::EmptyVocab);
    assert_eq!(refused("spm", &empty), TextError::EmptyVocab);
    let error = refused("gpt-2", &|v| v.model = "bert".into());
    assert!(matches!(error, TextError::UnknownModel { .. }), "{error}");
    let error = refused("gpt-2", &|v| v.pre = Some("tekken".into()));
    assert!(matches!(error, TextError::UnknownPreTokenizer { .. }), "{error}");
    let error = refused("gpt-2", &|v| v.merges.clear());
    assert_eq!(error, TextError::NoMerges { found: 0 });
    let error = refused("gpt-2", &|v| v.merges = vec![b"ab".to_vec(), b"".to_vec(), b" ".to_vec()]);
    assert_eq!(error, TextError::NoMerges { found: 3 });
    let error = refused("gpt-2", &|v| v.bos = Some(803));
    assert!(matches!(error, TextError::SpecialOutOfRange { id: 803, tokens: 803, .. }), "{error}");
    let error = refused("gpt-2", &|v| v.add_bos = Some(true));
    assert_eq!(error, TextError::MissingSpecial { what: "BOS" });
    let error = refused("spm", &|v| v.scores.as_mut().unwrap().truncate(10));
    assert!(matches!(error, TextError::LengthMismatch { found: 10, .. }), "{error}");
    let error = refused("spm", &|v| v.types.as_mut().unwrap().push(1));
    assert!(matches!(error, TextError::LengthMismatch { .. }), "{error}");
    let error = refused("spm", &|v| {
        let types = v.types.as_mut().unwrap();
        types.iter_mut().for_each(|kind| *kind = 1);
    });
    assert_eq!(error, TextError::NoFallback);

    let tokenizer = data.vocabulary("gpt-2").tokenizer();
    let error = tokenizer.decode(&[0, 803], DecodeOptions::default()).unwrap_err();
    assert_eq!(error, TextError::TokenOutOfRange { id: 803, tokens: 803 });
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
    assert!(StreamDecoder::new(&tokenizer, DecodeOptions::default()).push(u32::MAX).is_err());
}

/// Files with defects that have a defined meaning.
#[test]
fn defects_with_a_defined_meaning() {
    let data = Vectors::load();
    let text = "the weather in the mountains 山";

    let mut dead_merges = data.vocabulary("gpt-2").clone();
    let expected = dead_merges.tokenizer().encode(text, REFERENCE).unwrap();
    dead_merges
        .merges
        .splice(0..0, [b"zz qq".to_vec(), b"nospace".to_vec(), b"\xff \xfe".to_vec()]);
    let tokenizer = dead_merges.tokenizer();
    assert_eq!(tokenizer.skipped_merges(), 3);
    assert_eq!(tokenizer.encode(text, REFERENCE).unwrap(), expected);

    let mut repeated = data.vocabulary("spm").clone();
    let expected = repeated.tokenizer().encode(text, REFERENCE).unwrap();
    repeated.tokens.push(repeated.tokens[300].clone());
    repeated.types.as_mut().unwrap().push(1);
    repeated.scores.as_mut().unwrap().push(1e9);
    repeated.tokens.extend([vec![], b"\xff\xfe".to_vec()]);
    repeated.types.as_mut().unwrap().extend([1, 4]);
    repeated.scores.as_mut().unwrap().extend([f32::NAN, f32::INFINITY]);
    let tokenizer = repeated.tokenizer();
    assert_eq!(
        tokenizer.encode(text, REFERENCE).unwrap(),
        expected,
        "the first of equal tokens counts"
    );
    assert_eq!(tokenizer.token_bytes(901), Some(&[][..]));
    assert_eq!(tokenizer.token_bytes(902), Some(&b"\xff\xfe"[..]));
}

/// Time must not grow with the square of a word's length. The factor leaves room for a busy machine: quadratic work on
/// a megabyte would take hours.
#[test]
fn a_megabyte_without_white_space_takes_no_time_to_speak_of() {
    let data = Vectors::load();
    let texts = [
        "a".repeat(1 << 20),
        "thein".repeat(200_000),
        "山里的天气变化很快".repeat(40_000),
        " ".repeat(1 << 20),
        "<".repeat(1 << 20),
        "<|en".repeat(250_000),
        "'".repeat(1 << 20),
        "1".repeat(1 << 20),
    ];
    let start = Instant::now();
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        for text in &texts {
            let ids = tokenizer.encode(text, REFERENCE).unwrap();
            assert!(!ids.is_empty() || vocabulary.name == "spm-unknown");
        }
    }
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

/// Damaged vocabularies: any result is right as long as there is one, ids are in range, and decoding does not fail.
#[test]
fn damaged_vocabularies_never_panic() {
    let data = Vectors::load();
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |t| t.as_nanos() as u64 | 1);
    let mut rng = Random(seed);
    let strings = data.random_strings();
    let (mut built, mut refused) = (0, 0);
    for round in 0..600 {
        let mut vocabulary =
            data.vocabularies[rng.below(data.vocabularies.len() as u64) as usize].clone();
        for _ in 0..=rng.below(6) {
            vocabulary.damage(&mut rng);
        }
        let Ok(tokenizer) = Tokenizer::new(&vocabulary.vocab()) else {
            refused += 1;
            continue;
        };
        built += 1;
        for _ in 0..20 {
            let text = &strings[rng.below(strings.len() as u64) as usize];
            for options in [EncodeOptions::PROMPT, EncodeOptions::PLAIN] {
                let ids = tokenizer.encode(text, options).unwrap();
                let note = format!("seed {seed}, round {round}, {text:?}");
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()), "{note}");
                let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
                let mut streamed = String::new();
                for &id in &ids {
                    streamed += &stream.push(id).unwrap();
                }
                streamed += &stream.finish();
                let whole = tokenizer.decode(&ids, DecodeOptions::default()).unwrap();
                assert_eq!(streamed, String::from_utf8_lossy(&whole), "{note}");
            }
        }
    }
    assert!(built > 50 && refused > 50, "seed {seed}: {built} built, {refused} refused");
}

#[test]
fn pieces_cover_the_text() {
    for text in Vectors::load().random_strings() {
        for name in ["default", "gpt-2", "llama-bpe", "qwen2", "smollm"] {
            let pieces: Vec<&str> = PreTokenizer::from_name(name).unwrap().pieces(&text).collect();
            assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}: {text:?}");
            assert_eq!(pieces.concat(), text, "{name}");
        }
    }
}

/// The contents of `vectors.json`.
struct Vectors {
    texts: Vec<String>,
    pools: Vec<Vec<String>>,
    random_strings: usize,
    vocabularies: Vec<Owned>,
}

impl Vectors {
    fn load() -> Self {
        let data: Value = serde_json::from_str(VECTORS).unwrap();
        Self {
            texts: strings(&data["texts"]),
            pools: data["pools"].as_array().unwrap().iter().map(strings).collect(),
            random_strings: data["random_strings"].as_u64().unwrap() as usize,
            vocabularies: data["vocabularies"]
                .as_array()
                .unwrap()
                .iter()
                .map(Owned::from_vectors)
                .collect(),
        }
    }

    fn vocabulary(&self, name: &str) -> &Owned {
        self.vocabularies.iter().find(|v| v.name == name).unwrap()
    }

    /// The strings that `make_vectors.py` hashed.
    fn random_strings(&self) -> Vec<String> {
        let mut rng = Random(0x5eed);
        let string = |rng: &mut Random| {
            (0..rng.below(40))
                .map(|_| {
                    let pool = &self.pools[rng.below(self.pools.len() as u64) as usize];
                    pool[rng.below(pool.len() as u64) as usize].as_str()
                })
                .collect()
        };
        (0..self.random_strings).map(|_| string(&mut rng)).collect()
    }
}

/// A vocabulary that owns its strings.
#[derive(Clone, Default)]
struct Owned {
    name: String,
    model: String,
    pre: Option<String>,
    tokens: Vec<Vec<u8>>,
    types: Option<Vec<i32>>,
    scores: Option<Vec<f32>>,
    merges: Vec<Vec<u8>>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
    add_space_prefix: Option<bool>,
    remove_extra_whitespaces: Option<bool>,
    ids: Vec<Value>,
}

impl Owned {
    fn from_vectors(data: &Value) -> Self {
        Self {
            name: data["name"].as_str().unwrap().into(),
            model: data["model"].as_str().unwrap().into(),
            pre: data["pre"].as_str().map(Into::into),
            tokens: byte_strings(&data["tokens"]),
            types: Some(
                integers(data["types"].as_array().unwrap()).iter().map(|&t| t as i32).collect(),
            ),
            scores: data["scores"]
                .as_array()
                .map(|s| s.iter().map(|x| x.as_f64().unwrap() as f32).collect()),
            merges: data["merges"].as_array().map_or(vec![], |_| byte_strings(&data["merges"])),
            add_space_prefix: data["add_space_prefix"].as_bool(),
            remove_extra_whitespaces: data["remove_extra_whitespaces"].as_bool(),
            ids: data["ids"].as_array().unwrap().clone(),
            ..Self::default()
        }
    }

    /// Reads the format of the `tokenizers` package.
    fn from_tokenizer_json(path: &Path, pre: &str) -> Self {
        let data: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let vocab = data["model"]["vocab"].as_object().unwrap();
        let added = data["added_tokens"].as_array().unwrap();
        let added = added.iter().map(|t| {
            (t["content"].as_str().unwrap(), &t["id"], 3 + i32::from(t["special"] == false))
        });
        let all = vocab.iter().map(|(text, id)| (text.as_str(), id, 1)).chain(added);
        let all: Vec<_> =
            all.map(|(text, id, kind)| (text, id.as_u64().unwrap() as usize, kind)).collect();
        let size = all.iter().map(|&(_, id, _)| id + 1).max().unwrap();
        let mut tokens = vec![vec![]; size];
        let mut types = vec![5; size];
        for (text, id, kind) in all {
            tokens[id] = text.into();
            types[id] = kind;
        }
        let merge = |m: &Value| match m.as_str() {
            Some(text) => text.into(),
            None => strings(m).join(" ").into_bytes(),
        };
        Self {
            model: "gpt2".into(),
            pre: Some(pre.into()),
            tokens,
            types: Some(types),
            merges: data["model"]["merges"].as_array().unwrap().iter().map(merge).collect(),
            ..Self::default()
        }
    }

    fn vocab(&self) -> Vocab<'_> {
        Vocab {
            model: &self.model,
            pre: self.pre.as_deref(),
            tokens: self.tokens.iter().map(Vec::as_slice).collect(),
            scores: self.scores.as_deref(),
            token_types: self.types.as_deref(),
            merges: self.merges.iter().map(Vec::as_slice).collect(),
            bos: self.bos,
            eos: self.eos,
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            add_space_prefix: self.add_space_prefix,
            remove_extra_whitespaces: self.remove_extra_whitespaces,
            ..Vocab::default()
        }
    }

    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(&self.vocab()).unwrap()
    }

    /// SentencePiece itself never reads control tokens from text.
    fn reference_options(&self) -> EncodeOptions {
        match self.model.as_str() {
            "llama" => EncodeOptions::PLAIN,
            _ => REFERENCE,
        }
    }

    /// Breaks one thing.
    fn damage(&mut self, rng: &mut Random) {
        let at = |rng: &mut Random, len: usize| rng.below(len.max(1) as u64) as usize;
        let token = at(rng, self.tokens.len());
        match rng.below(16) {
            0 => self.tokens.truncate(token),
            1 => self.tokens[token].clear(),
            2 => self.tokens[token] = (0..rng.below(30)).map(|_| rng.below(256) as u8).collect(),
            3 => self.tokens[token] = self.tokens[at(rng, self.tokens.len())].clone(),
            4 => {
                let len = self.tokens.len();
                let types = self.types.get_or_insert_with(|| vec![1; len]);
                for _ in 0..rng.below(200) {
                    let at = at(rng, types.len());
                    types[at] = rng.below(9) as i32 - 1;
                }
            }
            5 => self.types = None,
            6 => {
                if let Some(scores) = &mut self.scores {
                    for _ in 0..100 {
                        let at = at(rng, scores.len());
                        scores[at] = f32::from_bits(rng.below(1 << 32) as u32);
                    }
                }
            }
            7 => self.scores = None,
            8 => {
                for _ in 0..rng.below(100) {
                    let at = at(rng, self.merges.len());
                    if let Some(merge) = self.merges.get_mut(at) {
                        *merge =
                            (0..rng.below(6)).map(|_| b" ab\xffe"[rng.below(5) as usize]).collect();
                    }
                }
            }
            9 => {
                let at = at(rng, self.merges.len() + 1);
                self.merges.truncate(at);
            }
            10 => self.merges.reverse(),
            11 => self.bos = Some(rng.below(1000) as u32),
            12 => self.add_bos = Some(rng.below(2) == 0),
            13 => self.add_space_prefix = Some(rng.below(2) == 0),
            14 => self.remove_extra_whitespaces = Some(rng.below(2) == 0),
            _ => self.model = ["gpt2", "llama"][rng.below(2) as usize].into(),
        }
        if self.tokens.is_empty() {
            self.tokens.push(b"x".to_vec());
        }
    }
}

/// A published vocabulary reduced to what its texts can reach.
struct RealModel {
    name: String,
    pre: String,
    data: Value,
}

impl RealModel {
    fn load() -> Vec<Self> {
        let data: Value = serde_json::from_str(REAL).unwrap();
        let models = data.as_array().unwrap().iter();
        models
            .map(|data| Self {
                name: data["name"].as_str().unwrap().into(),
                pre: data["pre"].as_str().unwrap().into(),
                data: data.clone(),
            })
            .collect()
    }

    fn subset(&self) -> Tokenizer {
        let size = self.data["size"].as_u64().unwrap() as usize;
        let mut tokens = vec![vec![]; size];
        let mut types = vec![1; size];
        for (key, kind) in [("tokens", 1), ("special", 3)] {
            for (id, text) in self.data[key].as_object().unwrap() {
                let id: usize = id.parse().unwrap();
                tokens[id] = text.as_str().unwrap().into();
                types[id] = kind;
            }
        }
        let owned = Owned {
            model: "gpt2".into(),
            pre: Some(self.pre.clone()),
            tokens,
            types: Some(types),
            merges: byte_strings(&self.data["merges"]),
            ..Owned::default()
        };
        owned.tokenizer()
    }

    fn check(&self, tokenizer: &Tokenizer) {
        let texts = Vectors::load().texts.into_iter().filter(|text| text.chars().count() < 500);
        let texts: Vec<String> = texts.chain(strings(&self.data["texts"])).collect();
        let ids = self.data["ids"].as_array().unwrap();
        assert_eq!(texts.len(), ids.len());
        for (text, expected) in texts.iter().zip(ids) {
            let found = tokenizer.encode(text, REFERENCE).unwrap();
            assert_eq!(found, integers(expected.as_array().unwrap()), "{}: {text:?}", self.name);
        }
    }
}

/// xorshift64*, as in `make_vectors.py`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// FNV-1a over the ids as little-endian 32-bit words, folded to 32 bits.
fn fnv(ids: &[u32]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in ids.iter().flat_map(|id| id.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    (hash ^ (hash >> 32)) as u32
}

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap().into()).collect()
}

fn byte_strings(value: &Value) -> Vec<Vec<u8>> {
    strings(value).into_iter().map(String::into_bytes).collect()
}

fn integers(values: &[Value]) -> Vec<u32> {
    values.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
