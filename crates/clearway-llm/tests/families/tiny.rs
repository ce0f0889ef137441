//! Tiny files of a family: metadata and tensors as its files have them, weights from the names.

use std::collections::BTreeMap;

use clearway::DType;
use clearway_llm::gguf::GgufWriter;

use super::math::Rows;

/// Sizes that all tiny files share, where a family does not say otherwise.
pub const LAYERS: usize = 3;
pub const EMBD: usize = 32;
pub const FF: usize = 48;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD: usize = 8;
pub const VOCAB: usize = 96;
pub const Q: usize = HEADS * HEAD;
pub const KV: usize = KV_HEADS * HEAD;

/// A value of the metadata.
#[derive(Clone, Copy)]
pub enum Meta {
    U(usize),
    F(f32),
    S(&'static str),
    B(bool),
}

/// A file in the making.
#[derive(Clone)]
pub struct Tiny {
    arch: &'static str,
    meta: Vec<(&'static str, Meta)>,
    /// Dimensions, rows last, and values.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Tiny {
    /// A file with the keys and tensors that every decoder has.
    pub fn decoder(arch: &'static str, meta: &[(&'static str, Meta)]) -> Self {
        let mut tiny = Self::new(arch, meta);
        tiny.meta.push(("attention.head_count_kv", Meta::U(KV_HEADS)));
        tiny.meta.push(("attention.layer_norm_rms_epsilon", Meta::F(1e-5)));
        tiny.tensor("output.weight", &[EMBD, VOCAB]);
        tiny.tensor("output_norm.weight", &[EMBD]);
        tiny
    }

    /// A file with the keys and tensors that every model has.
    pub fn new(arch: &'static str, meta: &[(&'static str, Meta)]) -> Self {
        let mut all = vec![
            ("block_count", Meta::U(LAYERS)),
            ("context_length", Meta::U(64)),
            ("embedding_length", Meta::U(EMBD)),
            ("feed_forward_length", Meta::U(FF)),
            ("attention.head_count", Meta::U(HEADS)),
            ("vocab_size", Meta::U(VOCAB)),
        ];
        all.extend_from_slice(meta);
        let mut tiny = Self { arch, meta: all, tensors: BTreeMap::new() };
        tiny.tensor("token_embd.weight", &[EMBD, VOCAB]);
        tiny
    }

    /// A tensor with the weights of its name.
    pub fn tensor(&mut self, name: &str, dims: &[usize]) {
        let values = crate::weights::weight(name, dims.iter().product(), dims[0]);
        self.values(name, dims, values);
    }

    pub fn values(&mut self, name: &str, dims: &[usize], values: Vec<f32>) {
        self.tensors.insert(name.to_owned(), (dims.to_vec(), values));
    }

    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no {name}"));
    }

    /// Names and dimensions of all tensors, rows last.
    #[allow(dead_code)] // not every test that shares this module looks at them
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, (dims, _))| (&**name, &**dims))
    }

    /// Tensors of every layer.
    pub fn layers(&mut self, parts: &[(&str, &[usize])]) {
        for layer in 0..LAYERS {
            for (part, dims) in parts {
                self.tensor(&format!("blk.{layer}.{part}"), dims);
            }
        }
    }

    /// A matrix by its rows; a vector is one row, and experts lie one after another.
    pub fn rows(&self, name: &str) -> Rows {
        let (dims, values) = self.tensors.get(name).unwrap_or_else(|| panic!("no {name}"));
        let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
        values.chunks(dims[0]).map(row).collect()
    }

    pub fn vector(&self, name: &str) -> Vec<f64> {
        self.rows(name).concat()
    }

    /// Rows of the embedding.
    pub fn embedded(&self, tokens: &[u32]) -> Rows {
        let table = self.rows("token_embd.weight");
        tokens.iter().map(|&token| table[token as usize].clone()).collect()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", self.arch).unwrap();
        for (key, value) in &self.meta {
            let key = &format!("{}.{key}", self.arch);
            match *value {
                Meta::U(value) => writer.set(key, &(value as u32)).unwrap(),
                Meta::F(value) => writer.set(key, &value).unwrap(),
                Meta::S(value) => writer.set(key, value).unwrap(),
                Meta::B(value) => writer.set(key, &value).unwrap(),
            }
        }
        writer.set("tokenizer.ggml.model", "none").unwrap();
        for (name, (dims, values)) in &self.tensors {
            let write = move |out: &mut dyn std::io::Write| {
                values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
            };
            writer.tensor(name, DType::F32, dims, write).unwrap();
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        bytes
    }
}
