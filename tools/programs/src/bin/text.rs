//! Answers a question with a model file: `text FILE QUESTION`.

use std::io::Write;

use clearway_llm::{Model, Options, Sampling};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(question)) = (arguments.next(), arguments.next()) else {
        return Err("usage: text FILE QUESTION".into());
    };
    let mut model = Model::load(file, Options::default())?;
    let mut chat = model.chat()?;
    chat.user(&question);
    let sampling = Sampling { budget: 40, ..Sampling::default() };
    let mut reply = chat.reply(&sampling)?;
    for piece in &mut reply {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!("\n{} tokens", reply.usage().tokens);
    Ok(())
}
