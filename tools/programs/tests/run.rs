//! Both programs run to their end.

use std::process::{Command, Output};

use clearway_llm::gguf::synth::{Synth, SynthShape};
use clearway_llm::model::{Arch, ModelShape};

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn a_custom_kernel_runs() {
    let output = run(env!("CARGO_BIN_EXE_custom_kernel"), &[]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("256 numbers clamped on "));
}

#[test]
fn text_comes_out_of_a_model() {
    let mut shape = ModelShape::new("tiny", Arch::Llama, 2, 32, 64, 2, 1, 16, 300);
    shape.tied = true;
    let shape = SynthShape::new(shape).unwrap();
    let synth = Synth { shape, quant: "f32".parse().unwrap(), seed: 1, vocab: true };
    let file = std::env::temp_dir().join(format!("clearway-text-{}.gguf", std::process::id()));
    synth.write_file(&file, |_| Ok(())).unwrap();
    let output = run(env!("CARGO_BIN_EXE_text"), &[file.to_str().unwrap(), "Hello"]);
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.trim_end().ends_with("tokens"), "{text}");
}
