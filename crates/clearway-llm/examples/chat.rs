//! A conversation in a dozen lines.
//!
//! cargo run --release -p clearway-llm --features fetch --example chat [MODEL]

use std::io::{Write, stdout};

use clearway_llm::{Model, Options, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "smollm2:135m".into());
    let mut model = Model::fetch(&name, Options::default())?;
    let mut chat = model.chat()?;
    chat.user("Why is the sky blue? Answer in one sentence.");
    let mut reply = chat.reply(&Sampling { budget: 64, ..Sampling::default() })?;
    for piece in &mut reply {
        print!("{}", piece?);
        stdout().flush()?;
    }
    println!("\n{:.1} tokens per second; {:?}", reply.usage().decode.rate(), reply.end());
    Ok(())
}
