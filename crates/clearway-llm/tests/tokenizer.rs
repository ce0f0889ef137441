//! The tokenizer against ids made by the reference packages; see `data/tokenizer/make_vectors.py`.

// Helper functions of tests may fail like tests do.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../clearway-fuzz/src/tokenizer.rs"]
mod fuzz_tokenizer;
#[path = "data/tokenizer/vectors.rs"]
mod vectors;

use std::path::Path;
use std::time::{Duration, Instant};

use clearway_graph::testkit::skip;
use clearway_llm::text::{
    DecodeOptions, EncodeOptions, PreTokenizer, StreamDecoder, TextError, TokenKind, Tokenizer,
    Vocab,
};

use self::vectors::{Owned, REFERENCE, Random, RealModel, Vectors, fnv, integers};

#[test]
fn small_vocabularies_give_the_reference_ids() {
    let data = Vectors::load();
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let options = vocabulary.reference_options();
        for (text, expected) in data.texts.iter().zip(&vocabulary.ids) {
            let ids = tokenizer.encode(text, options).unwrap();
            match expected.as_array() {
                Some(expected) => {
                    assert_eq!(ids, integers(expected), "{}: {text:?}", vocabulary.name)
                }
                None => {
                    let found = (ids.len() as u64, u64::from(fnv(&ids)));
                    let expected = (&expected["len"], &expected["fnv"]);
                    let expected = (expected.0.as_u64().unwrap(), expected.1.as_u64().unwrap());
                    assert_eq!(found, expected, "{}: {:.40}…", vocabulary.name, text);
                }
            }
        }
    }
}

#[test]
fn random_strings_give_the_reference_ids() {
    let data = Vectors::load();
    let strings = data.random_strings();
    let mut hashes =
        vectors::RANDOM.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let options = vocabulary.reference_options();
        for text in &strings {
            let ids = tokenizer.encode(text, options).unwrap();
            let name = &vocabulary.name;
            assert_eq!(Some(fnv(&ids)), hashes.next(), "{name}: {text:?} gave {ids:?}");
        }
    }
    assert_eq!(hashes.next(), None);
}

#[test]
fn decoding_gives_the_text_back() {
    let data = Vectors::load();
    let texts = data.random_strings();
    for vocabulary in &data.vocabularies {
        if ["qwen2", "spm-unknown"].contains(&&*vocabulary.name) {
            continue; // these change the text before they encode it
        }
        let tokenizer = vocabulary.tokenizer();
        let options = DecodeOptions { strip_prefix: true, ..DecodeOptions::default() };
        for text in texts.iter().chain(&data.texts) {
            let ids = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
            let expected = match tokenizer.is_sentencepiece() {
                true => text.replace('\u{2581}', " "),
                false => text.clone(),
            };
            // After a user-defined token the space that starts a text is put in again.
            if vocabulary.name == "spm" && text.contains("<sep>") {
                continue;
            }
            let decoded = tokenizer.decode(&ids, options).unwrap();
            assert_eq!(String::from_utf8(decoded).unwrap(), expected, "{}", vocabulary.name);
        }
    }
}

#[test]
fn a_stream_never_splits_a_character_and_adds_up_to_the_lossy_text() {
    let data = Vectors::load();
    for vocabulary in &data.vocabularies {
        let tokenizer = vocabulary.tokenizer();
        let mut rng = Random(99);
        for round in 0..400 {
            let strip_prefix = round % 2 == 0;
            let options = DecodeOptions { skip_special: round % 3 == 0, strip_prefix };
            // Mostly single bytes, so that characters of every length come together and fall apart.
            let ids: Vec<u32> = (0..rng.below(60))
                .map(|_| match rng.below(4) {
                    0 => rng.below(tokenizer.len() as u64) as u32,
                    _ => rng.below(260) as u32,
                })
                .collect();
            let mut stream = StreamDecoder::new(&tokenizer, options);
            let mut text = String::new();
            for &id in &ids {
                text += &stream.push(id).unwrap();
            }
            text += &stream.finish();
            let whole = tokenizer.decode(&ids, options).unwrap();
            assert_eq!(text, String::from_utf8_lossy(&whole), "{}: {ids:?}", vocabulary.name);
        }
        // Text that is whole comes out as soon as its last byte does.
        for text in ["naïve 山 😀 क्ष", "👩‍👩‍👧‍👦", "Ж"] {
            let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
            let ids = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
            for &id in &ids {
                stream.push(id).unwrap();
            }
            assert_eq!(stream.finish(), "", "{}: {text}", vocabulary.name);
        }
    }
}

#[test]
fn published_vocabularies_give_the_reference_ids() {
    for model in RealModel::load() {
        let tokenizer = model.subset();
        assert_eq!(tokenizer.skipped_merges(), 0);
        model.check(&tokenizer);
    }
}

/// The whole of a published vocabulary, where `CLEARWAY_TOKENIZER_LLAMA3` or `CLEARWAY_TOKENIZER_QWEN25` names its
/// `tokenizer.json`.
#[test]
fn whole_published_vocabularies_give_the_reference_ids() {
    for (name, variable) in
        [("llama3", "CLEARWAY_TOKENIZER_LLAMA3"), ("qwen2.5", "CLEARWAY_TOKENIZER_QWEN25")]
    {
        let Some(path) = std::env::var_os(variable) else {
            skip("tokenizers", format!("{variable} is not set"));
            continue;
        };
        let model = RealModel::load().into_iter().find(|m| m.name == name).unwrap();
        let file = Owned::from_tokenizer_json(Path::new(&path), &model.pre);
        model.check(&file.tokenizer());
    }
}

#[test]
fn special_tokens_are_parsed_only_when_asked() {
    let data = Vectors::load();
    for name in ["gpt-2", "llama-bpe"] {
        let tokenizer = data.vocabulary(name).tokenizer();
        let (end, sep) =
            (tokenizer.token_id("<|end|>").unwrap(), tokenizer.token_id("<sep>").unwrap());
        let text = "a<|end|>b<sep>c";
        let parsed = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
        assert!(parsed.contains(&end) && parsed.contains(&sep), "{parsed:?}");
        let plain = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
        assert!(!plain.contains(&end) && plain.contains(&sep), "{plain:?}");
        assert_eq!(tokenizer.token_kind(end), Some(TokenKind::Control));
        assert_eq!(tokenizer.token_bytes(end), Some(&b"<|end|>"[..]));
        let shown = tokenizer.decode(&parsed, DecodeOptions::default()).unwrap();
        assert_eq!(shown, text.as_bytes());
        let skip = DecodeOptions { skip_special: true, strip_prefix: false };
        assert_eq!(tokenizer.decode(&parsed, skip).unwrap(), b"ab<sep>c");
        assert!(tokenizer.is_end(end) && !tokenizer.is_end(sep));
    }
    let spm = data.vocabulary("spm").tokenizer();
    let parsed = spm.encode("<s>x</s> y", REFERENCE).unwrap();
    assert_eq!((parsed[0], spm.bos(), spm.eos()), (1, Some(1), Some(2)));
    assert!(parsed.contains(&2));
    assert!(!spm.encode("<s>x</s>", EncodeOptions::PLAIN).unwrap().contains(&1));
}

#[test]
fn the_end_of_a_part_ends_no_answer_where_answers_have_parts() {
    let tokens: [&[u8]; 6] = [b"a", b"b", b"ab", b"<|end|>", b"<|return|>", b"<|call|>"];
    let ends = |count: usize, eot: u32| {
        let vocab = Vocab {
            model: "gpt2",
            pre: Some("gpt-4o"),
            tokens: tokens[..count].to_vec(),
            token_types: Some(&[1, 1, 1, 3, 3, 3][..count]),
            merges: vec![b"a b"],
            eos: Some(count as u32 - 1),
            eot: Some(eot),
            ..Vocab::default()
        };
        Tokenizer::new(&vocab).unwrap().end_tokens().to_vec()
    };
    assert_eq!(ends(5, 3), [3, 4]);
    assert_eq!(ends(6, 3), [4, 5]);
    assert_eq!(ends(6, 4), [4, 5]);
}

#[test]
fn bos_and_eos_come_only_where_the_file_asks() {
    let data = Vectors::load();
    let mut bpe = data.vocabulary("gpt-2").clone();
    let first = |v: &Owned, text: &str| v.tokenizer().encode(text, EncodeOptions::PROMPT).unwrap();
    let plain = first(&bpe, "a");
    bpe.bos = Some(800);
    assert_eq!(first(&bpe, "a"), plain, "no add_bos_token: nothing is added");
    bpe.add_bos = Some(true);
    bpe.eos = Some(801);
    bpe.add_eos = Some(true);
    assert_eq!(first(&bpe, "a"), [&[800], &plain[..], &[801]].concat());
    assert_eq!(first(&bpe, ""), [800, 801]);
    assert_eq!(bpe.tokenizer().encode("a", EncodeOptions::PLAIN).unwrap(), plain);

    // Llama 3 files leave the key out and mean yes.
    let mut llama = data.vocabulary("llama-bpe").clone();
    llama.bos = Some(805);
    let tokenizer = llama.tokenizer();
    assert!(tokenizer.adds_bos());
    assert_eq!(tokenizer.encode("a", EncodeOptions::PROMPT).unwrap()[0], 805);
    let text = String::from_utf8(tokenizer.token_bytes(805).unwrap().to_vec()).unwrap();
    let chat = tokenizer.encode_chat(&format!("{text}a")).unwrap();
    assert_eq!(chat.iter().filter(|&&id| id == 805).count(), 1, "a template's BOS is not doubled");
    assert_eq!(tokenizer.encode_chat("a").unwrap()[0], 805);
    llama.add_bos = Some(false);
    assert_eq!(llama.tokenizer().encode("a", EncodeOptions::PROMPT).unwrap(), [plain[0]]);

    let spm = data.vocabulary("spm").tokenizer();
    assert_eq!(spm.encode("", EncodeOptions::PROMPT).unwrap(), [1]);
}

#[test]
fn vocabularies_that_cannot_work_are_refused() {
    let data = Vectors::load();
    let refused = |name: &str, change: &dyn Fn(&mut Owned)| {
        let mut vocabulary = data.vocabulary(name).clone();
        change(&mut vocabulary);
        Tokenizer::new(&vocabulary.vocab()).map(drop).unwrap_err()
    };
    let empty = |v: &mut Owned| {
        v.tokens.clear();
        v.types = None;
        v.scores = None;
    };
    assert_eq!(refused("gpt-2", &empty), TextError::EmptyVocab);
    assert_eq!(refused("spm", &empty), TextError::EmptyVocab);
    let error = refused("gpt-2", &|v| v.model = "t5".into());
    assert!(matches!(error, TextError::UnknownModel { .. }), "{error}");
    let error = refused("gpt-2", &|v| v.model = "bert".into());
    assert_eq!(error, TextError::MissingSpecial { what: "unknown" });
    let error = refused("gpt-2", &|v| v.pre = Some("tekken".into()));
    assert!(matches!(error, TextError::UnknownPreTokenizer { .. }), "{error}");
    let error = refused("gpt-2", &|v| v.merges.clear());
    assert_eq!(error, TextError::NoMerges { found: 0 });
    let error = refused("gpt-2", &|v| v.merges = vec![b"ab".to_vec(), b"".to_vec(), b" ".to_vec()]);
    assert_eq!(error, TextError::NoMerges { found: 3 });
    let error = refused("gpt-2", &|v| v.bos = Some(803));
    assert!(matches!(error, TextError::SpecialOutOfRange { id: 803, tokens: 803, .. }), "{error}");
    let error = refused("gpt-2", &|v| v.add_bos = Some(true));
    assert_eq!(error, TextError::MissingSpecial { what: "BOS" });
    let error = refused("spm", &|v| v.scores.as_mut().unwrap().truncate(10));
    assert!(matches!(error, TextError::LengthMismatch { found: 10, .. }), "{error}");
    let error = refused("spm", &|v| v.types.as_mut().unwrap().push(1));
    assert!(matches!(error, TextError::LengthMismatch { .. }), "{error}");
    let error = refused("spm", &|v| {
        let types = v.types.as_mut().unwrap();
        types.iter_mut().for_each(|kind| *kind = 1);
    });
    assert_eq!(error, TextError::NoFallback);

    let tokenizer = data.vocabulary("gpt-2").tokenizer();
    let error = tokenizer.decode(&[0, 803], DecodeOptions::default()).unwrap_err();
    assert_eq!(error, TextError::TokenOutOfRange { id: 803, tokens: 803 });
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
    assert!(StreamDecoder::new(&tokenizer, DecodeOptions::default()).push(u32::MAX).is_err());
}

/// Files with defects that have a defined meaning.
#[test]
fn defects_with_a_defined_meaning() {
    let data = Vectors::load();
    let text = "the weather in the mountains 山";

    let mut dead_merges = data.vocabulary("gpt-2").clone();
    let expected = dead_merges.tokenizer().encode(text, REFERENCE).unwrap();
    dead_merges
        .merges
        .splice(0..0, [b"zz qq".to_vec(), b"nospace".to_vec(), b"\xff \xfe".to_vec()]);
    let tokenizer = dead_merges.tokenizer();
    assert_eq!(tokenizer.skipped_merges(), 3);
    assert_eq!(tokenizer.encode(text, REFERENCE).unwrap(), expected);

    let mut repeated = data.vocabulary("spm").clone();
    let expected = repeated.tokenizer().encode(text, REFERENCE).unwrap();
    repeated.tokens.push(repeated.tokens[300].clone());
    repeated.types.as_mut().unwrap().push(1);
    repeated.scores.as_mut().unwrap().push(1e9);
    repeated.tokens.extend([vec![], b"\xff\xfe".to_vec()]);
    repeated.types.as_mut().unwrap().extend([1, 4]);
    repeated.scores.as_mut().unwrap().extend([f32::NAN, f32::INFINITY]);
    let tokenizer = repeated.tokenizer();
    assert_eq!(
        tokenizer.encode(text, REFERENCE).unwrap(),
        expected,
        "the first of equal tokens counts"
    );
    assert_eq!(tokenizer.token_bytes(901), Some(&[][..]));
    assert_eq!(tokenizer.token_bytes(902), Some(&b"\xff\xfe"[..]));
}

/// Time must not grow with the square of a word's length. The limit leaves room for a busy machine: quadratic work on
/// a megabyte would take hours.
#[test]
fn a_megabyte_without_white_space_takes_no_time_to_speak_of() {
    let data = Vectors::load();
    let texts = [
        "a".repeat(1 << 20),
        "thein".repeat(200_000),
        "山里的天气变化很快".repeat(40_000),
        " ".repeat(1 << 20),
        "<|en".repeat(250_000),
        "'".repeat(1 << 20),
    ];
    let start = Instant::now();
    for name in ["gpt-2", "llama-bpe", "spm", "spm-unused"] {
        let tokenizer = data.vocabulary(name).tokenizer();
        for text in &texts {
            assert!(!tokenizer.encode(text, REFERENCE).unwrap().is_empty());
        }
    }
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

/// Damaged vocabularies: any result is right as long as there is one, ids are in range, and decoding does not fail.
#[test]
fn damaged_vocabularies_never_panic() {
    let data = Vectors::load();
    let seed = seed();
    let mut rng = Random(seed);
    let strings = data.random_strings();
    let (mut built, mut refused) = (0, 0);
    for round in 0..600 {
        let mut vocabulary =
            data.vocabularies[rng.below(data.vocabularies.len() as u64) as usize].clone();
        for _ in 0..=rng.below(6) {
            vocabulary.damage(&mut rng);
        }
        let Ok(tokenizer) = Tokenizer::new(&vocabulary.vocab()) else {
            refused += 1;
            continue;
        };
        built += 1;
        for _ in 0..20 {
            let text = &strings[rng.below(strings.len() as u64) as usize];
            for options in [EncodeOptions::PROMPT, EncodeOptions::PLAIN] {
                let ids = tokenizer.encode(text, options).unwrap();
                let note = format!("seed {seed}, round {round}, {text:?}");
                assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()), "{note}");
                let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
                let mut streamed = String::new();
                for &id in &ids {
                    streamed += &stream.push(id).unwrap();
                }
                streamed += &stream.finish();
                let whole = tokenizer.decode(&ids, DecodeOptions::default()).unwrap();
                assert_eq!(streamed, String::from_utf8_lossy(&whole), "{note}");
            }
        }
    }
    assert!(built > 50 && refused > 50, "seed {seed}: {built} built, {refused} refused");
}

/// Vocabularies that are nonsense from the start: few tokens of few letters, so that merges, duplicates and special
/// tokens get in each other's way.
#[test]
fn arbitrary_vocabularies_never_panic() {
    let seed = seed();
    let mut rng = Random(seed);
    let mut built = 0;
    for round in 0..20_000 {
        let letters = [b'a', b'b', b' ', b'<', 0xc4, 0xa0, 0xe2, 0x96, 0x81, 0xff];
        let mut data: Vec<u8> = vec![rng.below(256) as u8, rng.below(8) as u8, rng.below(6) as u8];
        for section in 0..2 {
            for _ in 0..rng.below(20) {
                let len = rng.below(6) as u8 + section;
                data.push(len << 3 | [1, 1, 1, 2, 3, 4, 5, 6][rng.below(8) as usize]);
                data.extend((0..len).map(|_| letters[rng.below(letters.len() as u64) as usize]));
            }
            data.push(0);
        }
        data.extend((0..rng.below(40)).map(|_| letters[rng.below(letters.len() as u64) as usize]));
        let outcome = std::panic::catch_unwind(|| fuzz_tokenizer::fuzz_tokenizer(&data));
        built +=
            u32::from(outcome.unwrap_or_else(|_| panic!("seed {seed}, round {round}: {data:?}")));
    }
    assert!(built > 2000, "seed {seed}: {built}");
}

#[test]
fn pieces_cover_the_text() {
    for text in Vectors::load().random_strings() {
        for name in [
            "default",
            "gpt-2",
            "llama-bpe",
            "qwen2",
            "smollm",
            "deepseek-llm",
            "deepseek-coder",
            "deepseek-v3",
        ] {
            let pieces: Vec<&str> = PreTokenizer::from_name(name).unwrap().pieces(&text).collect();
            assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}: {text:?}");
            assert_eq!(pieces.concat(), text, "{name}");
        }
    }
}

/// A new seed for each run; failures print it.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |t| t.as_nanos() as u64 | 1)
}

/// See `data/tokenizer/make_families.py`.
const FAMILIES: &str = include_str!("data/tokenizer/families.json");

#[test]
fn texts_are_split_as_for_gpt_4o() {
    let data: serde_json::Value = serde_json::from_str(FAMILIES).unwrap();
    let pre = PreTokenizer::from_name("gpt-4o").unwrap();
    let texts = data["texts"].as_array().unwrap();
    for (text, expected) in texts.iter().zip(data["split"].as_array().unwrap()) {
        let pieces: Vec<&str> = pre.pieces(text.as_str().unwrap()).collect();
        let expected: Vec<&str> =
            expected.as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
        assert_eq!(pieces, expected, "{text}");
    }
    assert!(texts.len() > 400);
}

/// See `data/tokenizer/make_deepseek.py`.
#[test]
fn texts_are_split_as_for_deepseek() {
    let data: serde_json::Value =
        serde_json::from_str(include_str!("data/tokenizer/deepseek.json")).unwrap();
    let texts = data["texts"].as_array().unwrap();
    for name in ["deepseek-llm", "deepseek-coder", "deepseek-v3"] {
        let pre = PreTokenizer::from_name(name).unwrap();
        for (text, expected) in texts.iter().zip(data["split"][name].as_array().unwrap()) {
            let pieces: Vec<&str> = pre.pieces(text.as_str().unwrap()).collect();
            let expected: Vec<&str> =
                expected.as_array().unwrap().iter().map(|piece| piece.as_str().unwrap()).collect();
            assert_eq!(pieces, expected, "{name}: {text}");
        }
    }
    assert!(texts.len() > 300);
}

#[test]
fn wordpiece_gives_the_reference_ids() {
    let data: serde_json::Value = serde_json::from_str(FAMILIES).unwrap();
    for name in ["lower", "cased"] {
        let vocabulary = &data["wordpiece"][name];
        let tokens: Vec<&[u8]> = vocabulary["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| token.as_str().unwrap().as_bytes())
            .collect();
        let types: Vec<i32> =
            tokens.iter().map(|token| if token.starts_with(b"[") { 3 } else { 1 }).collect();
        let vocab = Vocab {
            model: "bert",
            tokens,
            token_types: Some(&types),
            unk: Some(1),
            cls: Some(2),
            sep: Some(3),
            ..Default::default()
        };
        let tokenizer = Tokenizer::new(&vocab).unwrap();
        let texts = data["texts"].as_array().unwrap();
        for (text, expected) in texts.iter().zip(vocabulary["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let ids = tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
            assert_eq!(ids, integers(expected.as_array().unwrap()), "{name}: {text:?}");
            // A text stands between its two tokens.
            let whole = tokenizer.encode(text, EncodeOptions::PROMPT).unwrap();
            assert_eq!(whole, [&[2], &ids[..], &[3]].concat(), "{name}: {text:?}");
        }
        let ids = tokenizer.encode("unaffable", EncodeOptions::PLAIN).unwrap();
        assert_eq!(ids.len(), 3, "{ids:?}");
        let text = tokenizer.decode(&ids, DecodeOptions { skip_special: true, strip_prefix: true });
        assert_eq!(text.unwrap(), b"unaffable");
    }
}
