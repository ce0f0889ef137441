//! Synthetic models have the layout of the script that speed comparisons with other engines use.

use std::io::{self, Write};

use clearway_graph::DType;
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};

/// Shape, recipe, length of the header, its FNV-1a hash, and length of the file, as the reference
/// script writes them. Left out is 135m in q4_k_m, where the script splits blocks between rows.
const REFERENCE: [(&str, &str, usize, u64, u64); 14] = [
    ("135m", "f16", 16736, 0x8979_d38b_88f3_2964, 242_574_944),
    ("135m", "q8_0", 16736, 0xf812_ddda_b81a_8ab6, 143_042_144),
    ("135m", "q4_0", 16736, 0x3f7a_3766_59e9_1863, 89_957_984),
    ("135m", "q4_1", 16736, 0x318c_eacd_bde2_748a, 96_593_504),
    ("1b", "f16", 9248, 0xc2a3_92dd_4b83_c0f3, 2_997_109_792),
    ("1b", "q8_0", 9248, 0x6935_9c99_931e_54cb, 1_592_345_632),
    ("1b", "q4_0", 9248, 0xf861_7139_3a39_f13d, 843_138_080),
    ("1b", "q4_1", 9248, 0x03e1_cfd2_2849_9e81, 936_789_024),
    ("1b", "q4_k_m", 9248, 0xc751_18eb_4646_1486, 947_622_944),
    ("8b", "f16", 17856, 0x0a87_b20d_bdb5_5279, 16_061_072_832),
    ("8b", "q8_0", 17856, 0x5450_23f0_71ae_46ed, 8_532_952_512),
    ("8b", "q4_0", 17856, 0x0102_4935_9e67_390d, 4_517_955_008),
    ("8b", "q4_1", 17856, 0x4f2f_5786_894d_5c85, 5_019_829_696),
    ("8b", "q4_k_m", 17856, 0xd7d7_a1d4_2d45_ff5f, 4_912_915_904),
];

/// Keeps the beginning of what it is given and counts the rest.
#[derive(Default)]
struct Beginning {
    kept: Vec<u8>,
    len: u64,
}

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = 20_000_usize.saturating_sub(self.kept.len());
        self.kept.extend(&bytes[..bytes.len().min(room)]);
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn headers_and_lengths_equal_the_reference() {
    for (shape, quant, header_len, header_hash, file_len) in REFERENCE {
        let synth = Synth::new(shape.parse().unwrap(), quant.parse().unwrap(), 7);
        let mut out = Beginning::default();
        let mut seen = 0;
        let progress = |written| {
            seen = written;
            Ok(())
        };
        assert_eq!(synth.write_to(&mut out, progress).unwrap(), file_len, "{shape} {quant}");
        assert_eq!((out.len, seen, synth.file_bytes().unwrap()), (file_len, file_len, file_len));
        let hash = out.kept[..header_len].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(hash, header_hash, "{shape} {quant}");
    }
}

#[test]
fn narrow_models_fall_back_to_types_that_fit() {
    let folder = crate::Folder::new("synth-narrow");
    let path = folder.0.join("model.gguf");
    let synth = Synth::new("smollm2-135m".parse().unwrap(), SynthQuant::Q4_K_M, 1);
    let len = synth.write_file(&path, |_| Ok(())).unwrap();
    assert_eq!(folder.names(), ["model.gguf"]);
    let model = clearway_llm::gguf::Gguf::open(&path).unwrap();
    assert_eq!(model.file_bytes(), len);
    let dtype = |name: &str| model.tensor(name).unwrap().dtype();
    assert_eq!(dtype("token_embd.weight"), DType::Q8_0);
    assert_eq!(dtype("blk.0.attn_q.weight"), DType::Q5_0);
    assert_eq!(dtype("blk.0.attn_v.weight"), DType::Q8_0);
    assert_eq!(dtype("blk.0.ffn_down.weight"), DType::Q6_K);
    assert_eq!(dtype("blk.4.ffn_down.weight"), DType::Q4_K);
    assert_eq!(dtype("blk.4.attn_norm.weight"), DType::F32);
    assert!(model.find_tensor("output.weight").is_none());
}

#[test]
fn names_are_looked_up() {
    for shape in SynthShape::all() {
        assert_eq!(shape.name().parse::<SynthShape>().unwrap(), shape);
    }
    for (short, name) in [("135m", "smollm2-135m"), ("1b", "llama-1b"), ("8b", "llama-8b")] {
        assert_eq!(short.parse::<SynthShape>().unwrap().name(), name);
    }
    assert_eq!("Q4_K_M".parse::<SynthQuant>().unwrap(), SynthQuant::Q4_K_M);
    assert_eq!(
        "70b".parse::<SynthShape>().unwrap_err().to_string(),
        r#"unknown shape "70b"; known are smollm2-135m, llama-1b, llama-8b, qwen3-0.6b, qwen3-30b-a3b, gemma3-4b, phi4-mini, gpt-oss-20b, deepseek-v2-lite"#
    );
    let error = "q9_k".parse::<SynthQuant>().unwrap_err().to_string();
    assert!(error.starts_with(r#"unknown quantisation "q9_k"; known are f32, f16, bf16, q4_0"#));
    for quant in SynthQuant::ALL {
        assert_eq!(quant.name().parse::<SynthQuant>().unwrap(), quant);
        assert!(error.contains(quant.name()), "{error}");
    }
}

#[test]
fn failure_leaves_nothing_behind() {
    let folder = crate::Folder::new("synth-failure");
    let synth = Synth::new("135m".parse().unwrap(), SynthQuant::Q4_0, 1);
    // The user stops half-way.
    let stop = |written| match written > 1 << 20 {
        true => Err(io::Error::other("stopped")),
        false => Ok(()),
    };
    let error = synth.write_file(&folder.0.join("stopped.gguf"), stop).unwrap_err().to_string();
    assert!(error.contains("stopped"), "{error}");
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    // A folder in the place of the file: everything is written, only the last step fails.
    let taken = folder.0.join("taken");
    std::fs::create_dir_all(taken.join("inside")).unwrap();
    let error = synth.write_file(&taken, |_| Ok(())).unwrap_err().to_string();
    assert!(error.starts_with("cannot write ") && error.contains("taken"), "{error}");
    assert_eq!(folder.names(), ["taken"]);
    let error =
        synth.write_file(&folder.0.join("absent/model.gguf"), |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
    assert_eq!(folder.names(), ["taken"]);
}
