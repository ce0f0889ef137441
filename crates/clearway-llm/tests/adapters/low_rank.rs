//! Adapter files in the making, and the model that one gets by adding their products to the weights.

use clearway::DType;
use clearway_llm::engine::Adapter;
use clearway_llm::gguf::{Gguf, GgufWriter};
use half::f16;

use crate::tiny::Tiny;

/// The matrices of one weight, rows one after another.
#[derive(Clone)]
pub struct Pair {
    pub weight: String,
    pub rank: usize,
    /// `rank` rows of `width`.
    pub first: Vec<f32>,
    pub width: usize,
    /// `rows` rows of `rank`.
    pub second: Vec<f32>,
    pub rows: usize,
}

/// An adapter in the making.
#[derive(Clone)]
pub struct LowRank {
    pub name: &'static str,
    pub arch: &'static str,
    pub alpha: Option<f32>,
    pub dtype: DType,
    pub pairs: Vec<Pair>,
}

impl LowRank {
    /// Changes of all weights of a model that `wanted` gives a rank for.
    pub fn of(
        name: &'static str,
        arch: &'static str,
        model: &Tiny,
        wanted: impl Fn(&str) -> Option<usize>,
    ) -> Self {
        let mut pairs = Vec::new();
        for (weight, dims) in model.tensors() {
            let (&[width, rows], Some(rank)) = (dims, wanted(weight)) else { continue };
            let values = |half: &str, elems, cols| {
                let name = format!("{name}.{weight}.{half}");
                // Values that halves hold.
                let values = crate::weights::weight(&name, elems, cols).into_iter();
                values.map(|value| f16::from_f32(value / 2.0).to_f32()).collect::<Vec<f32>>()
            };
            pairs.push(Pair {
                weight: weight.to_owned(),
                rank,
                first: values("a", rank * width, width),
                width,
                second: values("b", rows * rank, rank),
                rows,
            });
        }
        Self { name, arch, alpha: Some(8.0), dtype: DType::F32, pairs }
    }

    pub fn gguf(&self) -> Gguf {
        let mut writer = GgufWriter::new();
        writer.set("general.type", "adapter").unwrap();
        writer.set("general.architecture", self.arch).unwrap();
        writer.set("adapter.type", "lora").unwrap();
        if let Some(alpha) = self.alpha {
            writer.set("adapter.lora.alpha", &alpha).unwrap();
        }
        self.write(writer)
    }

    /// The tensors behind other metadata.
    pub fn write(&self, mut writer: GgufWriter<'_>) -> Gguf {
        for pair in &self.pairs {
            let Pair { weight, rank, first, width, second, rows } = pair;
            for (half, dims, values) in
                [("lora_a", [*width, *rank], first), ("lora_b", [*rank, *rows], second)]
            {
                let bytes: Vec<u8> = match self.dtype {
                    DType::F16 => {
                        values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
                    }
                    _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                };
                let name = format!("{weight}.{half}");
                let write = move |out: &mut dyn std::io::Write| out.write_all(&bytes);
                writer.tensor(&name, self.dtype, &dims, write).unwrap();
            }
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        Gguf::from_bytes(bytes).unwrap()
    }

    pub fn adapter(&self, scale: f32) -> Adapter {
        Adapter::new(self.name, &self.gguf(), scale).unwrap()
    }

    /// Adds `scale * alpha / rank * B A` to the weights of a model, in f64.
    pub fn merge(&self, model: &mut Tiny, scale: f64) {
        for Pair { weight, rank, first, width, second, rows } in &self.pairs {
            let factor = match self.alpha {
                None | Some(0.0) => scale,
                Some(alpha) => scale * f64::from(alpha) / *rank as f64,
            };
            let mut merged = model.rows(weight);
            for (row, second) in merged.iter_mut().zip(second.chunks(*rank)) {
                for (b, first) in second.iter().zip(first.chunks(*width)) {
                    for (value, a) in row.iter_mut().zip(first) {
                        *value += factor * f64::from(*b) * f64::from(*a);
                    }
                }
            }
            let values = merged.into_iter().flatten().map(|value| value as f32).collect();
            model.values(weight, &[*width, *rows], values);
        }
    }
}
