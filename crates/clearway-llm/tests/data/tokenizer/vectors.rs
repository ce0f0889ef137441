//! Reading of the test vectors beside this file; see `make_vectors.py`.

use std::path::Path;

use clearway_llm::text::{EncodeOptions, Tokenizer, Vocab};
use serde_json::Value;

const VECTORS: &str = include_str!("vectors.json");
pub(crate) const RANDOM: &[u8] = include_bytes!("random.bin");
const REAL: &str = include_str!("real.json");

/// The references parse special tokens and add nothing around the text.
pub(crate) const REFERENCE: EncodeOptions =
    EncodeOptions { add_special: false, parse_special: true };

/// The contents of `vectors.json`.
pub(crate) struct Vectors {
    pub(crate) texts: Vec<String>,
    pub(crate) pools: Vec<Vec<String>>,
    pub(crate) random_strings: usize,
    pub(crate) vocabularies: Vec<Owned>,
}

impl Vectors {
    pub(crate) fn load() -> Self {
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

    pub(crate) fn vocabulary(&self, name: &str) -> &Owned {
        self.vocabularies.iter().find(|v| v.name == name).unwrap()
    }

    /// The strings that `make_vectors.py` hashed.
    pub(crate) fn random_strings(&self) -> Vec<String> {
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
pub(crate) struct Owned {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) pre: Option<String>,
    pub(crate) tokens: Vec<Vec<u8>>,
    pub(crate) types: Option<Vec<i32>>,
    pub(crate) scores: Option<Vec<f32>>,
    pub(crate) merges: Vec<Vec<u8>>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_eos: Option<bool>,
    pub(crate) add_space_prefix: Option<bool>,
    pub(crate) remove_extra_whitespaces: Option<bool>,
    pub(crate) ids: Vec<Value>,
}

impl Owned {
    pub(crate) fn from_vectors(data: &Value) -> Self {
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
    pub(crate) fn from_tokenizer_json(path: &Path, pre: &str) -> Self {
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

    pub(crate) fn vocab(&self) -> Vocab<'_> {
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

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(&self.vocab()).unwrap()
    }

    /// SentencePiece itself never reads control tokens from text.
    pub(crate) fn reference_options(&self) -> EncodeOptions {
        match self.model.as_str() {
            "llama" => EncodeOptions::PLAIN,
            _ => REFERENCE,
        }
    }

    /// Breaks one thing.
    pub(crate) fn damage(&mut self, rng: &mut Random) {
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
pub(crate) struct RealModel {
    pub(crate) name: String,
    pub(crate) pre: String,
    pub(crate) data: Value,
}

impl RealModel {
    pub(crate) fn load() -> Vec<Self> {
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

    pub(crate) fn subset(&self) -> Tokenizer {
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

    pub(crate) fn check(&self, tokenizer: &Tokenizer) {
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
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// FNV-1a over the ids as little-endian 32-bit words, folded to 32 bits.
pub(crate) fn fnv(ids: &[u32]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in ids.iter().flat_map(|id| id.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    (hash ^ (hash >> 32)) as u32
}

pub(crate) fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap().into()).collect()
}

pub(crate) fn byte_strings(value: &Value) -> Vec<Vec<u8>> {
    strings(value).into_iter().map(String::into_bytes).collect()
}

pub(crate) fn integers(values: &[Value]) -> Vec<u32> {
    values.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
