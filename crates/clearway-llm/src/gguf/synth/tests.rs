//! Statistics and repeatability of the random weights, on a model small enough to hold in memory.

use std::io::{self, Write};

use clearway_graph::DType;
use half::f16;

use super::{Synth, SynthQuant, SynthShape};
use crate::gguf::{Gguf, GgufError, Tensor};
use crate::output::OutputFile;

const TINY: SynthShape = SynthShape {
    name: "tiny",
    short_name: "tiny",
    layers: 8,
    embedding: 256,
    feed_forward: 512,
    heads: 4,
    kv_heads: 2,
    head_width: 64,
    vocabulary: 100,
    tied: false,
};

fn bytes(quant: SynthQuant, seed: u64) -> Vec<u8> {
    let mut out = Vec::new();
    Synth { shape: TINY, quant, seed }.write_to(&mut out, |_| Ok(())).unwrap();
    out
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Weights of the types whose decoding is one line.
fn weights(tensor: Tensor<'_>) -> Vec<f32> {
    let blocks = tensor.bytes().chunks_exact(tensor.dtype().block_bytes());
    let nibbles = |block: &[u8]| {
        block.iter().flat_map(|&b| [b & 15, b >> 4]).map(f32::from).collect::<Vec<_>>()
    };
    match tensor.dtype() {
        DType::F32 => blocks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::F16 => blocks.map(half).collect(),
        DType::Q8_0 => blocks
            .flat_map(|b| b[2..].iter().map(|&q| half(b) * f32::from(q as i8)).collect::<Vec<_>>())
            .collect(),
        DType::Q4_0 => blocks
            .flat_map(|b| {
                nibbles(&b[2..]).into_iter().map(|q| half(b) * (q - 8.0)).collect::<Vec<_>>()
            })
            .collect(),
        DType::Q4_1 => blocks
            .flat_map(|b| {
                nibbles(&b[4..])
                    .into_iter()
                    .map(|q| half(b) * q + half(&b[2..]))
                    .collect::<Vec<_>>()
            })
            .collect(),
        other => panic!("{other} is not decoded here"),
    }
}

#[test]
fn weights_are_small_and_centred() {
    for quant in [SynthQuant::F16, SynthQuant::Q8_0, SynthQuant::Q4_0, SynthQuant::Q4_1] {
        let model = Gguf::from_bytes(bytes(quant, 3)).unwrap();
        for tensor in model.tensors() {
            let w = weights(tensor);
            let n = w.len() as f32;
            let mean = w.iter().sum::<f32>() / n;
            let deviation = (w.iter().map(|w| (w - mean).powi(2)).sum::<f32>() / n).sqrt();
            if tensor.dtype() == DType::F32 {
                assert_eq!((mean, deviation), (1.0, 0.0), "{tensor:?}");
            } else {
                // Uniform 8-bit and 4-bit quants by the scales of the tile, and the normal ones.
                let expected = match quant {
                    SynthQuant::F16 => 0.02,
                    SynthQuant::Q8_0 => 73.9 * 4e-4,
                    _ => 4.61 * 4e-3,
                };
                assert!(
                    (deviation / expected - 1.0).abs() < 0.03,
                    "{tensor:?}: deviation {deviation}"
                );
                assert!(mean.abs() < 3e-3, "{tensor:?}: mean {mean}");
            }
        }
    }
}

#[test]
fn super_blocks_have_finite_scales() {
    let model = Gguf::from_bytes(bytes(SynthQuant::Q4_K_M, 3)).unwrap();
    let mut seen = 0;
    for tensor in model.tensors() {
        let size = tensor.dtype().block_bytes();
        match tensor.dtype() {
            DType::F32 => continue,
            DType::Q4_K => {
                for block in tensor.bytes().chunks_exact(size) {
                    assert!(
                        (half(block) - 2e-4).abs() < 1e-6 && half(block) == half(&block[2..]),
                        "{tensor:?}"
                    );
                }
            }
            DType::Q6_K => {
                for block in tensor.bytes().chunks_exact(size) {
                    assert!((half(&block[208..]) - 1e-5).abs() < 1e-7, "{tensor:?}");
                }
                seen += 1;
            }
            other => panic!("{tensor:?} has type {other}"),
        }
    }
    // Value and down projections of blocks 0, 3, 6 and 7, and the output layer.
    assert_eq!(seen, 9);
}

#[test]
fn files_depend_on_the_seed_alone() {
    assert!(bytes(SynthQuant::Q4_0, 1) == bytes(SynthQuant::Q4_0, 1));
    assert!(bytes(SynthQuant::Q4_0, 1) != bytes(SynthQuant::Q4_0, 2));
    let model = Gguf::from_bytes(bytes(SynthQuant::Q4_0, 1)).unwrap();
    let data = |name: &str| model.tensor(name).unwrap().bytes();
    assert!(data("blk.0.attn_q.weight") != data("blk.1.attn_q.weight"));
}

#[test]
fn an_unfinished_file_disappears() {
    struct Full<'a>(&'a mut OutputFile, usize);
    impl Write for Full<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = self.1.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            self.0.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let folder = std::env::temp_dir().join(format!("clearway-partial-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let names = || std::fs::read_dir(&folder).unwrap().count();
    {
        let mut file = OutputFile::create(&folder.join("model.gguf")).unwrap();
        let synth = Synth { shape: TINY, quant: SynthQuant::Q4_0, seed: 1 };
        let error = synth.write_to(Full(&mut file, 100_000), |_| Ok(())).unwrap_err();
        assert!(
            matches!(&error, GgufError::Write { error, .. } if error.kind() == io::ErrorKind::StorageFull)
        );
        assert_eq!(names(), 1);
    }
    assert_eq!(names(), 0);
    std::fs::remove_dir(&folder).unwrap();
}
