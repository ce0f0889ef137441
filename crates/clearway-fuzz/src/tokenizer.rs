//! One step of fuzzing the tokenizer, shared by libFuzzer, the loop and the tests.

use clearway_llm::text::{
    DecodeOptions, EncodeOptions, StreamDecoder, TextError, Tokenizer, Vocab,
};

/// Reads the bytes as a vocabulary and a text. Whatever they are, there is an error or a tokenizer whose ids are in range
/// and decode, in one go and one by one, to the same text. Says whether there was a tokenizer.
///
/// Three bytes of options, then tokens (a byte of type and length, then the token) up to a zero byte, merges likewise,
/// and the text.
pub fn fuzz_tokenizer(data: &[u8]) -> bool {
    let ([flags, bos, pre], rest) = match data {
        [a, b, c, rest @ ..] => ([*a, *b, *c], rest),
        _ => return false,
    };
    let (tokens, rest) = records(rest);
    let (merges, text) = records(rest);
    let types: Vec<i32> = tokens.iter().map(|&(kind, _)| i32::from(kind)).collect();
    let scores: Vec<f32> =
        tokens.iter().map(|&(kind, token)| f32::from(kind) - token.len() as f32).collect();
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let vocab = Vocab {
        model: match (flag(0), pre) {
            (_, 6) => "bert",
            (true, _) => "llama",
            (false, _) => "gpt2",
        },
        pre: ["default", "gpt-2", "llama-bpe", "qwen2", "smollm", "gpt-4o", ""]
            .get(usize::from(pre))
            .copied(),
        tokens: tokens.iter().map(|&(_, token)| token).collect(),
        scores: flag(1).then_some(&scores),
        token_types: flag(2).then_some(&types),
        merges: merges.iter().map(|&(_, merge)| merge).collect(),
        bos: flag(3).then_some(u32::from(bos)),
        unk: flag(4).then_some(0),
        add_bos: flag(5).then_some(true),
        add_space_prefix: Some(flag(6)),
        remove_extra_whitespaces: Some(flag(7)),
        ..Vocab::default()
    };
    let Ok(tokenizer) = Tokenizer::new(&vocab) else {
        return false;
    };
    let text = String::from_utf8_lossy(text);
    for options in [EncodeOptions::PROMPT, EncodeOptions::PLAIN] {
        let Ok(ids) = tokenizer.encode(&text, options) else {
            panic!("a short text has ids");
        };
        let whole = tokenizer.decode(&ids, DecodeOptions::default());
        let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
        let streamed: Result<String, TextError> = ids.iter().map(|&id| stream.push(id)).collect();
        match (whole, streamed) {
            (Ok(whole), Ok(streamed)) => {
                assert_eq!(streamed + &stream.finish(), String::from_utf8_lossy(&whole));
            }
            _ => panic!("ids of the vocabulary decode"),
        }
    }
    true
}

type Record<'a> = (u8, &'a [u8]);

/// Strings with a type up to a zero byte, and what follows.
fn records(mut data: &[u8]) -> (Vec<Record<'_>>, &[u8]) {
    let mut records = Vec::new();
    while let [head, rest @ ..] = data {
        data = rest;
        if *head == 0 {
            break;
        }
        let (record, rest) = rest.split_at(usize::from(head >> 3).min(rest.len()));
        records.push((head & 7, record));
        data = rest;
    }
    (records, data)
}
