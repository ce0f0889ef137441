//! A byte-level BPE vocabulary of any size, made without a corpus.
//!
//! The 256 bytes come first, so that every text can be written. Then come runs of two, three and four
//! letters, some behind a space, each with the merge that makes it: English text takes about three
//! letters a token, and what a model of random weights writes is printable. ChatML's tokens come last.

use super::super::{error::GgufError, writer::GgufWriter};
use crate::text::byte_char;

/// The tokens of ChatML, at the end of the vocabulary in this order.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Letters of English text, the most frequent first.
const LETTERS: &str = "etaoinshrdlcumwfgypbvkjxqz";
/// Fewest tokens: the bytes, one merge (a vocabulary without any is refused), and the control tokens.
pub(super) const FEWEST: usize = 256 + 1 + CONTROL.len();
/// Most tokens: all runs of letters that are made here.
pub(super) const MOST: usize = 256 + 26 + 676 + 2 * 17_576 + 456_976 + CONTROL.len();

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
    message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Adds a vocabulary of `count` tokens and a chat template. `count` is from [`FEWEST`] to [`MOST`].
pub(super) fn add(writer: &mut GgufWriter<'_>, count: usize) -> Result<(), GgufError> {
    let merges: Vec<[String; 2]> = merges().take(count - 256 - CONTROL.len()).collect();
    let bytes = (0..=u8::MAX).map(|byte| byte_char(byte).to_string());
    let runs = merges.iter().map(|parts| parts.concat());
    let tokens: Vec<String> = bytes.chain(runs).chain(CONTROL.map(str::to_owned)).collect();
    let control = tokens.len() - CONTROL.len();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < control { 1 } else { 3 }).collect();
    let merges: Vec<String> = merges.iter().map(|parts| parts.join(" ")).collect();

    writer.set("tokenizer.ggml.model", "gpt2")?;
    writer.set("tokenizer.ggml.pre", "gpt-2")?;
    writer.set("tokenizer.ggml.tokens", &tokens)?;
    writer.set("tokenizer.ggml.token_type", &types)?;
    writer.set("tokenizer.ggml.merges", &merges)?;
    writer.set("tokenizer.ggml.bos_token_id", &(control as u32))?;
    writer.set("tokenizer.ggml.eos_token_id", &(control as u32 + 2))?;
    writer.set("tokenizer.ggml.add_bos_token", &false)?;
    writer.set("tokenizer.chat_template", TEMPLATE)
}

/// The merges, the most urgent first; both parts of each are tokens that stand before it.
fn merges() -> impl Iterator<Item = [String; 2]> {
    let letters = || LETTERS.chars().map(String::from);
    let pairs = move || letters().flat_map(move |a| letters().map(move |b| format!("{a}{b}")));
    let space = byte_char(b' ').to_string();
    let spaced = {
        let space = space.clone();
        letters().map(move |a| [space.clone(), a])
    };
    let twos = letters().flat_map(move |a| letters().map(move |b| [a.clone(), b]));
    let threes = pairs().flat_map(move |ab| letters().map(move |c| [ab.clone(), c]));
    let words = letters().flat_map(move |a| {
        let first = format!("{space}{a}");
        pairs().map(move |bc| [first.clone(), bc])
    });
    let fours = pairs().flat_map(move |ab| pairs().map(move |cd| [ab.clone(), cd]));
    spaced.chain(twos).chain(threes).chain(words).chain(fours)
}
