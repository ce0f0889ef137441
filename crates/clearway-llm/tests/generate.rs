//! Text from a tiny model: replies, their ends, and conversations that are saved and restored.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use clearway::DType;
use clearway_llm::engine::{EngineOptions, Sampler, TokenMask};
use clearway_llm::text::EncodeOptions;
use clearway_llm::{Chat, End, Error, Model, Sampling, Usage};

mod bytes;
use bytes::{cpu, devices, endless, file, file_of_heads, load};

/// Everything a reply gives.
fn all(model: &mut Model, prompt: &str, sampling: &Sampling) -> (String, End, Usage) {
    let mut reply = model.complete(prompt, sampling).unwrap();
    let mut text = String::new();
    for piece in &mut reply {
        text += &piece.unwrap().text;
    }
    assert_eq!(reply.text(), text);
    assert!(reply.next().is_none());
    (text, reply.end().unwrap().clone(), reply.usage())
}

#[test]
fn a_reply_is_what_single_steps_give() {
    for device in devices() {
        let name = device.info().name.clone();
        for sampling in [
            Sampling { budget: 40, ..Sampling::greedy() },
            Sampling { temperature: 1.3, seed: 5, budget: 40, ..Sampling::default() },
            // These go through the host.
            endless(40),
            Sampling { top_k: 0, seed: 3, budget: 40, ..Sampling::default() },
        ] {
            let mut model = load(device.clone(), 256);
            let (text, end, usage) = all(&mut model, "Hello", &sampling);
            let remembered = model.tokens().to_vec();
            assert_eq!(remembered.len(), model.engine().position(), "{name}");

            let mut engine = clearway_llm::engine::Engine::new(
                model.file(),
                device.clone(),
                EngineOptions { context: Some(256), ..EngineOptions::default() },
            )
            .unwrap();
            let mut tokens = model.tokenizer().encode("Hello", EncodeOptions::PROMPT).unwrap();
            let prompt = tokens.len();
            let mut logits = engine.eval(&tokens).unwrap();
            let mut sampler = Sampler::new(sampling.clone());
            let ended = loop {
                let token = sampler.sample(&logits, &tokens).unwrap();
                if model.tokenizer().is_end(token) {
                    break End::Token(token);
                }
                tokens.push(token);
                if tokens.len() == prompt + 40 {
                    break End::Budget;
                }
                logits = engine.eval(&[token]).unwrap();
            };
            assert_eq!(end, ended, "{name} {sampling:?}");
            assert_eq!(usage.tokens, tokens.len() - prompt, "{name}");
            assert_eq!((usage.cached, usage.prompt.tokens), (0, prompt));
            assert_eq!(usage.decode.tokens, remembered.len() - prompt);
            let decode = clearway_llm::text::DecodeOptions::default();
            let bytes = model.tokenizer().decode(&tokens[prompt..], decode).unwrap();
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{name} {sampling:?}");
            assert_eq!(remembered[..], tokens[..remembered.len()], "{name}");
        }
    }
}

#[test]
fn every_end_is_told() {
    for device in devices() {
        let mut model = load(device, 64);
        let (whole, end, usage) = all(&mut model, "Once", &endless(20));
        assert_eq!((end, usage.tokens), (End::Budget, 20));
        assert_eq!(all(&mut model, "Once", &endless(0)).1, End::Budget);

        // A string from the middle of the text, and the token behind it.
        let at: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
        let stop = whole[at[4]..at[7]].to_owned();
        let sampling = Sampling { stop_strings: vec![stop.clone()], ..endless(20) };
        let (text, end, _) = all(&mut model, "Once", &sampling);
        assert_eq!(
            (text.as_str(), end),
            (&whole[..whole.find(&stop).unwrap()], End::StopString(stop))
        );

        let mut reply = model.complete("Once", &endless(20)).unwrap();
        reply.by_ref().for_each(|piece| assert!(piece.is_ok()));
        drop(reply);
        let sixth = model.tokens()[4 + 5];
        let (_, end, usage) =
            all(&mut model, "Once", &Sampling { stop_tokens: vec![sixth], ..endless(20) });
        assert_eq!(end, End::Token(sixth));
        assert!(usage.tokens <= 5, "{usage:?}");

        let (_, end, usage) = all(&mut model, "Once", &endless(1000));
        assert_eq!((end, usage.tokens), (End::ContextFull { context: 64 }, 61));
        assert_eq!(model.tokens().len(), 64);
        // On the device, too.
        let drawn = Sampling { temperature: 1.0, ..Sampling::default() };
        let (_, end, _) = all(&mut model, "Once", &drawn);
        assert!(matches!(end, End::ContextFull { context: 64 } | End::Token(_)), "{end:?}");

        let long = "x".repeat(65);
        let error = model.complete(&long, &endless(1)).err().unwrap();
        assert!(matches!(error, Error::ContextFull { wanted: 65, context: 64 }), "{error}");
        assert!(matches!(model.reply(Vec::new(), &endless(1)).err(), Some(Error::Empty)));
        let unknown = model.reply(vec![1, 900], &endless(1)).err();
        assert!(matches!(unknown, Some(Error::TokenOutOfRange { token: 900, .. })));
        let adapted = Sampling { adapter: Some(1), ..endless(1) };
        assert!(matches!(model.complete("x", &adapted).err(), Some(Error::NoAdapter { .. })));
        let closed = Sampling { mask: Some(Arc::new(TokenMask::default())), ..endless(1) };
        let mut reply = model.complete("x", &closed).unwrap();
        assert!(matches!(reply.next(), Some(Err(Error::NoToken { position: 1 }))));
        assert!(reply.next().is_none() && reply.end().is_none());
    }
}

#[test]
fn a_stop_is_heard_between_batches_of_a_prompt_and_between_tokens() {
    let mut model = load(cpu(), 1024);
    let asked = Cell::new(0);
    let stop_at = |count: usize| {
        asked.set(0);
        let asked = &asked;
        move || {
            asked.set(asked.get() + 1);
            asked.get() > count
        }
    };
    let long = "y".repeat(600);
    let mut reply = model.complete(&long, &endless(9)).unwrap().stop_when(stop_at(2));
    assert!(reply.next().is_none());
    assert_eq!((reply.end(), reply.usage().prompt.tokens), (Some(&End::Stopped), 256));
    drop(reply);
    assert_eq!(model.tokens().len(), 256);
    // What was read is not read again.
    let mut reply = model.complete(&long, &endless(9)).unwrap().stop_when(stop_at(4));
    reply.by_ref().for_each(|piece| assert!(piece.is_ok()));
    let usage = reply.usage();
    assert_eq!((usage.cached, usage.prompt.tokens, usage.tokens), (256, 344, 2));
    assert_eq!(reply.end(), Some(&End::Stopped));
}

#[test]
fn a_long_prompt_is_watched_batch_by_batch_and_its_watcher_dropped() {
    let mut model = load(cpu(), 1024);
    let (seen, alive) = (RefCell::new(Vec::new()), Rc::new(()));
    let (list, held) = (&seen, alive.clone());
    let watch = move |done: usize, total: usize| {
        assert!(Rc::strong_count(&held) > 1);
        list.borrow_mut().push((done, total));
    };
    let long = "y".repeat(600);
    let mut reply = model.complete(&long, &endless(2)).unwrap().watch_prompt(watch);
    assert!(reply.next().unwrap().is_ok());
    assert_eq!(*seen.borrow(), [(0, 600), (256, 600), (512, 600)]);
    assert_eq!(Rc::strong_count(&alive), 1, "the watcher is gone with the prompt");
}

#[test]
fn log_probabilities_come_with_the_pieces() {
    let mut model = load(cpu(), 64);
    let sampling = Sampling { log_probs: 3, ..endless(10) };
    let mut reply = model.complete("abc", &sampling).unwrap();
    let pieces: Vec<_> = reply.by_ref().map(|piece| piece.unwrap()).collect();
    let found: Vec<_> = pieces.iter().flat_map(|piece| &piece.log_probs).collect();
    assert_eq!(found.len(), 10);
    for probs in found {
        assert_eq!(probs.top.len(), 3);
        assert!(probs.top[0].1 < 0.0 && probs.top[0].1 >= probs.top[1].1, "{probs:?}");
        assert!(probs.token > 255 || probs.log_prob <= probs.top[0].1, "{probs:?}");
    }
}

/// One turn; returns the reply and what it took.
fn turn(chat: &mut Chat<'_>, text: &str, sampling: &Sampling) -> (String, Usage) {
    chat.user(text);
    let mut reply = chat.reply(sampling).unwrap();
    let pieces: String = reply.by_ref().map(|piece| piece.unwrap().to_string()).collect();
    (pieces, reply.usage())
}

#[test]
fn a_conversation_reads_only_what_is_new() {
    let mut model = load(cpu(), 512);
    let mut chat = model.chat().unwrap();
    chat.system("Be brief.");
    let (first, usage) = turn(&mut chat, "Hi", &endless(6));
    assert_eq!(usage.cached, 0);
    let roles: Vec<&str> = chat.messages().iter().map(|m| &*m.role).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[2].content, first);
    let (_, usage) = turn(&mut chat, "And?", &endless(6));
    assert!(usage.cached > 20 && usage.prompt.tokens < 60, "{usage:?}");

    // A reply that is dropped halfway is a message, too; one that never began is none.
    chat.user("More");
    let mut reply = chat.reply(&endless(30)).unwrap();
    let piece = reply.next().unwrap().unwrap();
    drop(reply);
    assert_eq!(chat.messages().last().unwrap().content, piece.text);
    let count = chat.messages().len();
    drop(chat.reply(&endless(1)).unwrap());
    assert_eq!(chat.messages().len(), count);
    chat.clear();
    assert!(chat.messages().is_empty() && chat.model().tokens().is_empty());
    chat.user("z".repeat(600));
    assert!(matches!(chat.reply(&endless(1)).err(), Some(Error::ContextFull { .. })));
    assert_eq!(chat.pop().unwrap().role, "user");
}

#[test]
fn a_saved_conversation_goes_on_as_if_it_had_never_stopped() {
    for device in devices() {
        let name = device.info().name.clone();
        let drawn = Sampling { temperature: 1.1, seed: 4, budget: 12, ..Sampling::default() };
        let mut model = load(device.clone(), 512);
        let mut chat = model.chat().unwrap();
        turn(&mut chat, "Hello", &drawn);
        let saved = chat.save().unwrap();
        let (expected, whole) = turn(&mut chat, "Again", &drawn);
        let messages = chat.messages().to_vec();

        // The other cache has another size: rows are what counts.
        let mut other = load(device, 300);
        let mut restored = other.restore_chat(&saved).unwrap();
        assert_eq!(restored.messages(), &messages[..2]);
        let (found, usage) = turn(&mut restored, "Again", &drawn);
        assert_eq!(found, expected, "{name}");
        assert_eq!((usage.cached, usage.prompt.tokens), (whole.cached, whole.prompt.tokens));
        assert!(usage.cached > 5, "{usage:?}");
        assert_eq!(restored.messages(), messages);
    }
}

/// Rows of such a cache are quants in one place and scales in another.
#[test]
fn a_text_in_a_cache_of_8_bits_is_saved_and_goes_on() {
    for device in devices() {
        let name = device.info().name.clone();
        let of_rows = |context| {
            let cache_dtype = DType::Q8_0;
            let options =
                EngineOptions { context: Some(context), cache_dtype, ..EngineOptions::default() };
            let file = file_of_heads(1, "<|endoftext|>", None, 64);
            Model::new(&file, device.clone(), options, &mut |_| ()).unwrap()
        };
        let mut model = of_rows(512);
        let mut chat = model.chat().unwrap();
        turn(&mut chat, "Hello", &endless(12));
        let saved = chat.save().unwrap();
        let (expected, whole) = turn(&mut chat, "Again", &endless(12));
        let mut other = of_rows(300);
        let mut restored = other.restore_chat(&saved).unwrap();
        let (found, usage) = turn(&mut restored, "Again", &endless(12));
        assert_eq!(found, expected, "{name}");
        assert_eq!((usage.cached, usage.prompt.tokens), (whole.cached, whole.prompt.tokens));
        assert!(usage.cached > 5, "{usage:?}");

        let halves = EngineOptions { context: Some(300), ..EngineOptions::default() };
        let file = file_of_heads(1, "<|endoftext|>", None, 64);
        let mut halves = Model::new(&file, device, halves, &mut |_| ()).unwrap();
        assert!(matches!(halves.restore(&saved), Err(Error::Saved { .. })), "{name}");
    }
}

#[test]
fn a_cache_of_8_bits_needs_heads_of_whole_chunks() {
    let options = EngineOptions { cache_dtype: DType::Q8_0, ..EngineOptions::default() };
    let error = Model::new(&file(1), cpu(), options, &mut |_| ()).err().unwrap();
    assert!(matches!(error, Error::CacheType { cache_dtype: DType::Q8_0, .. }), "{error}");
    let text = "the cache cannot be q8_0: heads of 16 elements are no multiples of 32";
    assert_eq!(error.to_string(), text);
    let options = EngineOptions { cache_dtype: DType::Q4_0, ..options };
    let error = Model::new(&file(1), cpu(), options, &mut |_| ()).err().unwrap();
    assert!(error.to_string().ends_with("f16, f32 and q8_0 are supported"), "{error}");
}

#[test]
fn bytes_that_are_no_saved_text_of_this_model_change_nothing() {
    let mut model = load(cpu(), 64);
    all(&mut model, "abcdef", &endless(8));
    let saved = model.save().unwrap();
    let tokens = model.tokens().to_vec();
    let mut refused = |bytes: &[u8], what: &str| {
        let error = model.restore(bytes).err().unwrap_or_else(|| panic!("{what}"));
        assert!(matches!(error, Error::Saved { .. }), "{what}: {error}");
        assert_eq!(model.tokens(), tokens);
        assert_eq!(model.engine().position(), tokens.len());
    };
    for length in (0..saved.len()).step_by(7) {
        refused(&saved[..length], &format!("{length} bytes"));
    }
    for at in (0..saved.len()).step_by(11) {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x10;
        refused(&damaged, &format!("byte {at}"));
    }
    refused(&[&saved[..], b"more"].concat(), "more");

    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let wide = EngineOptions { cache_dtype: DType::F32, ..options };
    let mut wide = Model::new(&file(1), cpu(), wide, &mut |_| ()).unwrap();
    assert!(matches!(wide.restore(&saved), Err(Error::Saved { .. })), "another type of cache");
    let mut stranger = Model::new(&file(2), cpu(), options, &mut |_| ()).unwrap();
    assert!(matches!(stranger.restore(&saved), Err(Error::Saved { .. })), "other weights");
    let mut small = load(cpu(), 10);
    assert!(matches!(small.restore(&saved), Err(Error::ContextFull { context: 10, .. })));
    let mut fresh = load(cpu(), 64);
    fresh.restore(&saved).unwrap();
    assert_eq!(fresh.tokens(), tokens);
}
