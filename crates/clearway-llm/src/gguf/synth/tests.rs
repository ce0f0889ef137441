//! Weights, layouts and vocabularies, on models small enough to be evaluated.

use std::io::{self, Write};
use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::{DType, Device, RouterGroups};
use clearway_gpu::quant;

use super::{Synth, SynthQuant, SynthShape};
use crate::engine::{Engine, EngineOptions, model_shape};
use crate::gguf::{Gguf, GgufError};
use crate::model::{Arch, Experts, Latent, ModelShape, Stretch, Window, Yarn, builtin_shape};
use crate::output::OutputFile;
use crate::text::{DecodeOptions, EncodeOptions};
use crate::{End, Model, Sampling};

/// A folder of its own for each test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("clearway-synth-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Eight layers, so that every rule of the mixes about eighths applies.
fn llama() -> ModelShape {
    ModelShape::new("tiny", Arch::Llama, 8, 256, 512, 4, 2, 64, 300)
}

/// A built-in shape with few and narrow layers and everything else as it is.
fn narrow(shape: &ModelShape) -> ModelShape {
    if shape.latent.is_some() {
        let yarn = Yarn { log_multiplier: 0.0707, ..Yarn::new(40.0, 4096) };
        return ModelShape {
            layers: 2,
            embd: 256,
            ff: 512,
            heads: 4,
            head_dim: 96,
            rope_dims: 32,
            vocab: 300,
            attention_scale: yarn.latent_scale(96),
            latent: Some(Latent { q_rank: None, kv_rank: 64, plain: 64, value: 32 }),
            experts: shape.experts.map(|experts| Experts {
                shared_ff: Some(512),
                renormalise: false,
                ..Experts { count: 8, used: 2, ff: 256, ..experts }
            }),
            ..shape.clone()
        };
    }
    ModelShape {
        // One layer without a window.
        layers: shape.window.map_or(2, |window| window.period),
        embd: 256,
        ff: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rope_dims: shape.rope_dims * 64 / shape.head_dim,
        embedding_scale: match shape.arch {
            Arch::Gemma2 | Arch::Gemma3 => 16.0,
            _ => shape.embedding_scale,
        },
        vocab: 300,
        attention_scale: 0.125,
        experts: shape.experts.map(|experts| Experts { count: 8, used: 2, ff: 256, ..experts }),
        ..shape.clone()
    }
}

/// The built-in shapes and one of each family that has none, narrow.
fn all_families() -> Vec<ModelShape> {
    let mut all: Vec<_> = SynthShape::all().iter().map(|shape| narrow(shape.shape())).collect();
    all.push(ModelShape { name: "qwen2".into(), ..narrow(&family(Arch::Qwen2)) });
    all.push(ModelShape {
        name: "gemma2".into(),
        window: Some(Window { rows: 4, period: 2, rope_base: None }),
        attention_softcap: 50.0,
        logit_softcap: 30.0,
        tied: true,
        ..narrow(&family(Arch::Gemma2))
    });
    all.push(ModelShape {
        name: "granite".into(),
        embedding_scale: 12.0,
        residual_scale: 0.5,
        logit_scale: 0.5,
        ..narrow(&family(Arch::Granite))
    });
    all.push(ModelShape { name: "olmo2".into(), ..narrow(&family(Arch::Olmo2)) });
    let glm4 = ModelShape { rope_dims: 32, ..family(Arch::Glm4) };
    all.push(ModelShape { name: "glm4".into(), ..narrow(&glm4) });
    all.push(ModelShape {
        name: "qwen2moe".into(),
        experts: Some(Experts {
            shared_ff: Some(512),
            shared_gate: true,
            renormalise: false,
            ..Experts::new(8, 2, 256)
        }),
        ..family(Arch::Qwen2Moe)
    });
    all.push(ModelShape {
        name: "gemma2-27b".into(),
        layers: 46,
        heads: 2,
        kv_heads: 1,
        // Of the embedding over the heads, not of a head.
        attention_scale: (2.0_f32 / 256.0).sqrt(),
        tied: true,
        ..narrow(&family(Arch::Gemma2))
    });
    let lite = narrow(&builtin_shape("deepseek-v2-lite").unwrap());
    all.push(ModelShape {
        name: "deepseek-v3".into(),
        latent: lite.latent.map(|latent| Latent { q_rank: Some(64), ..latent }),
        experts: lite.experts.map(|experts| Experts {
            renormalise: true,
            sigmoid: true,
            bias: true,
            scale: 2.5,
            groups: RouterGroups { count: 4, used: 2, best: 2 },
            ..experts
        }),
        ..lite
    });
    let yarn = Yarn::new(4.0, 2048);
    all.push(ModelShape {
        name: "yarn".into(),
        stretch: Stretch::Yarn(yarn),
        rope_magnitude: yarn.magnitude(),
        ..narrow(&family(Arch::Qwen3))
    });
    all
}

fn family(arch: Arch) -> ModelShape {
    ModelShape::new("family", arch, 2, 256, 512, 4, 2, 64, 300)
}

fn synth(shape: ModelShape, quant: SynthQuant, seed: u64) -> Synth {
    Synth::new(SynthShape::new(shape).unwrap(), quant, seed)
}

fn bytes(synth: &Synth) -> Vec<u8> {
    let mut out = Vec::new();
    synth.write_to(&mut out, |_| Ok(())).unwrap();
    out
}

fn gguf(synth: &Synth) -> Gguf {
    Gguf::from_bytes(bytes(synth)).unwrap()
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::with_threads(1))
}

fn mean_and_deviation(numbers: &[f32]) -> (f32, f32) {
    let n = numbers.len() as f32;
    let mean = numbers.iter().sum::<f32>() / n;
    let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
    (mean, variance.sqrt())
}

#[test]
fn weights_are_small_and_centred_in_every_format() {
    for quant in SynthQuant::ALL {
        let model = gguf(&synth(llama(), quant, 3));
        for tensor in model.tensors() {
            let mut weights = vec![0.0; tensor.dims().iter().product()];
            quant::decode(tensor.dtype(), tensor.bytes(), &mut weights).unwrap();
            let (mean, deviation) = mean_and_deviation(&weights);
            if tensor.name().contains("norm") {
                assert_eq!((tensor.dtype(), mean, deviation), (DType::F32, 1.0, 0.0), "{tensor:?}");
                continue;
            }
            assert!(
                (0.015..0.03).contains(&deviation),
                "{quant:?} {tensor:?}: deviation {deviation}"
            );
            // Sub-blocks of super-blocks have a mean each, and small tensors have few of them.
            assert!(mean.abs() < 1.5e-3, "{quant:?} {tensor:?}: mean {mean}");
        }
    }
}

#[test]
fn a_name_of_one_type_gives_every_matrix_that_type() {
    for quant in SynthQuant::ALL.into_iter().filter(|quant| !quant.is_mix()) {
        let model = gguf(&synth(llama(), quant, 3));
        let matrices = model.tensors().filter(|tensor| tensor.dims().len() > 1);
        matrices.for_each(|tensor| assert_eq!(tensor.dtype(), quant.base(), "{tensor:?}"));
    }
}

#[test]
fn mixes_keep_sensitive_tensors_finer() {
    // Types of the value projections, of the down projections and of the projections behind attention, layer by
    // layer: 2 is Q2_K, and so on.
    let digits = |model: &Gguf, part: &str| -> String {
        let dtype = |layer| model.tensor(&format!("blk.{layer}.{part}.weight")).unwrap().dtype();
        (0..16).map(|layer| dtype(layer).to_string().remove(1)).collect()
    };
    for (quant, values, down, attended) in [
        (SynthQuant::Q2_K_S, "4444444444444444", "4422222222222222", "2222222222222222"),
        (SynthQuant::Q3_K_S, "3333333333333333", "3333333333333333", "3333333333333333"),
        (SynthQuant::Q3_K_M, "5544444444444444", "5444444444444444", "4444444444444444"),
        (SynthQuant::Q3_K_L, "5555555555555555", "5555555555555555", "5555555555555555"),
        (SynthQuant::Q4_K_S, "5555444444444444", "5544444444444444", "4444444444444444"),
        (SynthQuant::Q4_K_M, "6644644644644666", "6644644644644666", "4444444444444444"),
        (SynthQuant::Q5_K_S, "5555555555555555", "5555555555555555", "5555555555555555"),
        (SynthQuant::Q5_K_M, "6655655655655666", "6655655655655666", "5555555555555555"),
    ] {
        let shape = ModelShape { layers: 16, kv_heads: 1, ..llama() };
        let model = gguf(&synth(shape, quant, 3));
        assert_eq!(digits(&model, "attn_v"), values, "{quant:?}");
        assert_eq!(digits(&model, "ffn_down"), down, "{quant:?}");
        assert_eq!(digits(&model, "attn_output"), attended, "{quant:?}");
        assert_eq!(model.tensor("output.weight").unwrap().dtype(), DType::Q6_K, "{quant:?}");
        assert_eq!(model.tensor("token_embd.weight").unwrap().dtype(), quant.base(), "{quant:?}");
        for part in ["attn_q", "attn_k", "ffn_gate", "ffn_up"] {
            let tensor = model.tensor(&format!("blk.0.{part}.weight")).unwrap();
            assert_eq!(tensor.dtype(), quant.base(), "{quant:?} {tensor:?}");
        }
    }
}

#[test]
fn every_family_evaluates_to_finite_logits() {
    let few = [SynthQuant::F32, SynthQuant::BF16, SynthQuant::Q4_0, SynthQuant::Q4_K_M];
    for shape in all_families() {
        let formats = if shape.name == "llama-1b" { &SynthQuant::ALL[..] } else { &few };
        for &quant in formats {
            let name = format!("{} {}", shape.name, quant.name());
            let file = gguf(&synth(shape.clone(), quant, 5));
            let found = model_shape(&file).unwrap();
            assert_eq!(found, ModelShape { name: found.name.clone(), ..shape.clone() }, "{name}");
            let options = EngineOptions { context: Some(32), ..EngineOptions::default() };
            let mut engine = Engine::new(&file, cpu(), options).unwrap();
            let logits = engine.eval(&[1, 200, 7, 30, 299, 4]).unwrap();
            let next = engine.eval(&[5]).unwrap();
            for logits in [&logits, &next] {
                assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
                // Of the size that logits have: rows of 256 weights of 0.02 with a normed input.
                let (mean, deviation) = mean_and_deviation(logits);
                assert!((0.1..1.0).contains(&deviation), "{name}: deviation {deviation}");
                assert!(mean.abs() < 0.3, "{name}: mean {mean}");
            }
            assert_ne!(logits, next, "{name}");
        }
    }
}

#[test]
fn files_of_real_size_have_the_built_in_shapes() {
    let folder = Folder::new("sizes");
    let path = folder.0.join("model.gguf");
    let all = SynthShape::all();
    let names: Vec<_> = all.iter().map(SynthShape::name).collect();
    assert_eq!(
        names,
        [
            "smollm2-135m",
            "llama-1b",
            "llama-8b",
            "qwen3-0.6b",
            "qwen3-30b-a3b",
            "gemma3-4b",
            "phi4-mini",
            "gpt-oss-20b",
            "deepseek-v2-lite"
        ]
    );
    for shape in all {
        for quant in [SynthQuant::BF16, SynthQuant::Q5_K_M] {
            // The header is real; the weights are a hole.
            let synth = Synth::new(shape.clone(), quant, 1);
            let tiles = super::Tiles::new(1);
            let writer = synth.writer(&synth.tensors(), &tiles).unwrap();
            std::fs::write(&path, writer.header()).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_len(writer.file_bytes()).unwrap();
            let found = model_shape(&Gguf::open(&path).unwrap()).unwrap();
            let expected = ModelShape { name: found.name.clone(), ..shape.shape().clone() };
            assert_eq!(found, expected, "{quant:?}");
        }
    }
}

#[test]
fn a_family_without_a_name_in_files_is_refused() {
    let error = SynthShape::new(family(Arch::MoeShared)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no synthetic model of shape \"family\": GGUF files have no name for its family"
    );
    let error = SynthShape::new(family(Arch::Bert)).unwrap_err().to_string();
    assert!(error.contains("encoder"), "{error}");
}

#[test]
fn a_file_is_what_a_stream_is() {
    let folder = Folder::new("stream");
    // Two tensors that are longer than a tile.
    let shape = ModelShape { layers: 1, vocab: 70_001, ..llama() };
    for quant in [SynthQuant::F32, SynthQuant::Q6_K] {
        let synth = Synth { vocab: true, ..synth(shape.clone(), quant, 9) };
        let expected = bytes(&synth);
        let path = folder.0.join(quant.name());
        let mut seen = Vec::new();
        let progress = |done| {
            seen.push(done);
            Ok(())
        };
        assert_eq!(synth.write_file(&path, progress).unwrap(), expected.len() as u64);
        assert!(std::fs::read(&path).unwrap() == expected, "{quant:?}");
        assert!(seen.is_sorted() && seen.last() == Some(&(expected.len() as u64)), "{quant:?}");
    }
}

#[test]
fn files_depend_on_the_seed_alone() {
    let of_seed = |seed| bytes(&synth(llama(), SynthQuant::Q4_0, seed));
    assert!(of_seed(1) == of_seed(1));
    assert!(of_seed(1) != of_seed(2));
    let model = Gguf::from_bytes(of_seed(1)).unwrap();
    let data = |name: &str| model.tensor(name).unwrap().bytes();
    assert!(data("blk.0.attn_q.weight") != data("blk.1.attn_q.weight"));
}

#[test]
fn a_file_with_a_vocabulary_completes_and_chats() {
    let synth = Synth { vocab: true, ..synth(llama(), SynthQuant::Q8_0, 2) };
    let options = EngineOptions { context: Some(128), ..EngineOptions::default() };
    let mut model = Model::new(&gguf(&synth), cpu(), options, &mut |_| ()).unwrap();
    // Ids from 297 on are those of ChatML.
    let biases = (297..300).map(|token| (token, f32::NEG_INFINITY)).collect();
    let sampling = Sampling { budget: 12, biases, ..Sampling::greedy() };
    let mut reply = model.complete("Once upon a time", &sampling).unwrap();
    let pieces: Vec<_> = (&mut reply).map(|piece| piece.unwrap().text).collect();
    assert_eq!((reply.end(), reply.usage().tokens), (Some(&End::Budget), 12));
    assert!(!pieces.concat().is_empty());
    drop(reply);

    let mut chat = model.chat().unwrap();
    chat.user("Hello");
    let reply: Vec<_> = chat.reply(&sampling).unwrap().map(|piece| piece.unwrap().text).collect();
    assert!(!reply.concat().is_empty());
    drop(chat);
    let turn = DecodeOptions { skip_special: false, strip_prefix: false };
    let text = model.tokenizer().decode(model.tokens(), turn).unwrap();
    let text = String::from_utf8_lossy(&text);
    let prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    assert!(text.starts_with(prompt), "{text}");
}

#[test]
fn vocabularies_of_any_size_write_any_text() {
    let text =
        "The quick brown fox jumps over the lazy dog.\n\tZwölf Boxkämpfer, 日本語 🦊\u{0}\u{7f}";
    let mut lengths = Vec::new();
    for vocab in [260, 1000, 49_152, 262_144] {
        let mut writer = super::GgufWriter::new();
        super::vocabulary::add(&mut writer, vocab).unwrap();
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        let tokenizer = crate::engine::tokenizer(&Gguf::from_bytes(file).unwrap()).unwrap();
        assert_eq!((tokenizer.len(), tokenizer.skipped_merges()), (vocab, 0));
        let ids = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert_eq!(tokenizer.decode(&ids, DecodeOptions::default()).unwrap(), text.as_bytes());
        lengths.push(ids.len());
        // No two tokens are the same text.
        let mut all: Vec<_> = (0..vocab as u32).map(|id| tokenizer.token_bytes(id)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), vocab);
        let end = tokenizer.token_id("<|im_end|>");
        assert_eq!((tokenizer.eos(), end), (end, Some(vocab as u32 - 1)));
    }
    // Runs of two letters, of three and four; the longest list has none that this text needs besides.
    let shorter = lengths[1] < lengths[0] && lengths[2] < lengths[1] && lengths[3] <= lengths[2];
    assert!(shorter, "{lengths:?}");
}

#[test]
fn vocabularies_of_impossible_sizes_are_refused() {
    for vocab in [259, 493_090] {
        let shape = ModelShape { vocab, ..llama() };
        let with = Synth { vocab: true, ..synth(shape.clone(), SynthQuant::Q4_0, 1) };
        let error = with.file_bytes().unwrap_err().to_string();
        assert!(error.contains("260 to 493089 tokens") && error.contains(&vocab.to_string()));
        assert!(synth(shape, SynthQuant::Q4_0, 1).file_bytes().is_ok());
    }
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
    let folder = Folder::new("partial");
    let names = || std::fs::read_dir(&folder.0).unwrap().count();
    {
        let mut file = OutputFile::create(&folder.0.join("model.gguf")).unwrap();
        let synth = synth(llama(), SynthQuant::Q4_0, 1);
        let error = synth.write_to(Full(&mut file, 100_000), |_| Ok(())).unwrap_err();
        assert!(
            matches!(&error, GgufError::Write { error, .. } if error.kind() == io::ErrorKind::StorageFull)
        );
        assert_eq!(names(), 1);
    }
    assert_eq!(names(), 0);
}
