//! Drafts never change a text: tiny models with drafts of any quality, on every device.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::{Arc, Mutex};

use clearway::{DType, Device};
use clearway_llm::engine::{
    Constraint, Engine, EngineOptions, LogProbs, Penalties, Result, Rows, TextConstraint, TokenMask,
};
use clearway_llm::gguf::Gguf;
use clearway_llm::speculate::{DraftModel, Drafter, Ngrams};
use clearway_llm::{Chat, End, Error, Model, Sampling, Speculation, Usage};

mod bytes;
#[allow(dead_code)]
mod tiny;
use bytes::{cpu, devices, endless, file, load};

/// The text that comes without drafts, for a drafter that knows it.
type Known = Arc<Mutex<Vec<u32>>>;

/// Drafts that are right, wrong, right in part, too long, empty, or no tokens at all.
struct Odd {
    known: Known,
    state: u64,
}

impl Odd {
    fn new(known: &Known, seed: u64) -> Self {
        Self { known: known.clone(), state: seed }
    }

    fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11);
        (self.state >> 33) as usize % below
    }
}

impl Drafter for Odd {
    fn kind(&mut self, _: &[u32]) -> Option<usize> {
        let kind = self.random(9);
        (kind > 0).then_some(kind)
    }

    fn draft(&mut self, text: &[u32], most: usize, _: &Sampling) -> Result<Vec<u32>> {
        let known = self.known.lock().unwrap().clone();
        let behind = known.get(text.len()..).unwrap_or_default();
        let mut draft: Vec<u32> =
            behind.iter().copied().chain(std::iter::repeat(9)).take(most).collect();
        match self.random(6) {
            0 => {}
            1 => draft.iter_mut().for_each(|token| *token = (*token + 1) % 256),
            2 | 3 => {
                let from = self.random(most);
                draft[from..].iter_mut().for_each(|token| *token = (*token + 7) % 256);
            }
            4 => draft.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
            _ => draft[most / 2] = 70_000,
        }
        Ok(draft)
    }

    fn is_free(&self) -> bool {
        true
    }
}

/// What a reply gives, without times.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    text: String,
    log_probs: Vec<LogProbs>,
    end: End,
    tokens: usize,
    cached: usize,
    decoded: usize,
    remembered: Vec<u32>,
}

fn told(model: &mut Model, prompt: &str, sampling: &Sampling) -> (Told, Usage) {
    let mut reply = model.complete(prompt, sampling).unwrap();
    let (mut text, mut log_probs) = (String::new(), Vec::new());
    for piece in &mut reply {
        let piece = piece.unwrap();
        text += &piece.text;
        log_probs.extend(piece.log_probs);
    }
    let (end, usage) = (reply.end().unwrap().clone(), reply.usage());
    drop(reply);
    let remembered = model.tokens().to_vec();
    assert_eq!(remembered.len(), model.engine().position());
    let Usage { tokens, cached, decode, .. } = usage;
    (Told { text, log_probs, end, tokens, cached, decoded: decode.tokens, remembered }, usage)
}

/// The same up to what rounding changes in log probabilities: kernels of GPUs differ by the number of rows.
fn assert_same(found: Told, mut expected: Told, name: &str, what: &str) {
    if name != "cpu" {
        assert_eq!(found.log_probs.len(), expected.log_probs.len(), "{name} {what}");
        for (found, expected) in found.log_probs.iter().zip(&expected.log_probs) {
            assert!((found.log_prob - expected.log_prob).abs() < 1e-3, "{name} {what}");
        }
        expected.log_probs.clone_from(&found.log_probs);
    }
    assert_eq!(found, expected, "{name} {what}");
}

/// Forbids every third token, in turns that depend on the tokens before.
struct Thirds(u32);

impl Constraint for Thirds {
    fn mask(&mut self) -> Result<Option<Arc<TokenMask>>> {
        Ok(Some(Arc::new(TokenMask::new((0..256).filter(|token| token % 3 != self.0)))))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        assert_ne!(token % 3, self.0, "a token that the mask does not allow");
        self.0 = (self.0 + token) % 3;
        Ok(())
    }
}

/// Rows that the device and that the host chooses by.
fn rows() -> Vec<Sampling> {
    let penalties = Penalties { repeat: 1.3, frequency: 0.2, presence: 0.1, window: 20 };
    vec![
        Sampling::greedy(),
        Sampling { temperature: 1.2, seed: 7, ..Sampling::default() },
        Sampling { temperature: 1.2, seed: 8, top_k: 0, log_probs: 2, ..endless(0) },
        Sampling { penalties, ..endless(0) },
    ]
}

#[test]
fn drafts_of_any_quality_leave_a_text_as_it_is() {
    for device in devices() {
        let name = device.info().name.clone();
        let rounds = if name == "cpu" { 12 } else { 2 };
        let mut model = load(device, 96);
        for (row, sampling) in rows().into_iter().enumerate() {
            for budget in [1, 2, 5, 40, 1000] {
                let sampling = Sampling { budget, ..sampling.clone() };
                model.clear();
                model.speculate(None);
                let (plain, _) = told(&mut model, "Once more", &sampling);
                let known = Known::default();
                known.lock().unwrap().clone_from(&plain.remembered);
                let mut kept = 0;
                for seed in 0..rounds {
                    model.clear();
                    model.speculate(Some(Speculation::new(Odd::new(&known, seed)).always()));
                    let (found, usage) = told(&mut model, "Once more", &sampling);
                    let what = format!("row {row} budget {budget} seed {seed}");
                    assert_same(found, plain.clone(), &name, &what);
                    kept += usage.drafts.unwrap().kept;
                }
                assert!(kept > 0 || plain.decoded < 3, "{name} row {row}: no draft was right");
            }
        }
    }
}

#[test]
fn a_text_ends_in_the_middle_of_a_draft_where_it_ends_without() {
    for device in devices() {
        let name = device.info().name.clone();
        let mut model = load(device, 80);
        for plain_row in
            [endless(30), Sampling { temperature: 0.9, budget: 30, ..Sampling::default() }]
        {
            model.clear();
            model.speculate(None);
            let (plain, _) = told(&mut model, "Stop", &plain_row);
            let known = Arc::new(Mutex::new(plain.remembered.clone()));
            let prompt = 4;
            let stop_tokens = (0..6).map(|at| Sampling {
                stop_tokens: plain.remembered.get(prompt + at).copied().into_iter().collect(),
                ..plain_row.clone()
            });
            let letters: Vec<char> = plain.text.chars().collect();
            let stop_strings = letters.windows(2).take(6).map(|two| Sampling {
                stop_strings: vec![two.iter().collect()],
                ..plain_row.clone()
            });
            for sampling in stop_tokens.chain(stop_strings) {
                model.clear();
                model.speculate(None);
                let (expected, _) = told(&mut model, "Stop", &sampling);
                for seed in 0..3 {
                    model.clear();
                    model.speculate(Some(Speculation::new(Odd::new(&known, seed)).always()));
                    let (found, _) = told(&mut model, "Stop", &sampling);
                    assert_eq!(found, expected, "{name} {sampling:?}");
                    // What the model remembers is right: it goes on as if nothing had been drafted.
                    model.speculate(None);
                    let (after, _) = told(&mut model, "Stop", &plain_row);
                    assert_eq!(after.text, plain.text, "{name} {sampling:?}");
                }
            }
        }
    }
}

#[test]
fn a_constraint_hears_of_each_token_once_and_in_order() {
    let mut model = load(cpu(), 96);
    let row = || Sampling { constraint: Some(TextConstraint::new(Thirds(1))), ..endless(60) };
    let (plain, _) = told(&mut model, "Rules", &row());
    let known = Arc::new(Mutex::new(plain.remembered.clone()));
    for seed in 0..10 {
        model.clear();
        model.speculate(Some(Speculation::new(Odd::new(&known, seed)).always()));
        assert_eq!(told(&mut model, "Rules", &row()).0, plain);
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
fn conversations_go_on_saved_and_restored_as_without_drafts() {
    for device in devices() {
        let drawn = Sampling { temperature: 1.1, seed: 4, budget: 12, ..Sampling::default() };
        let mut plain = load(device.clone(), 512);
        let mut chat = plain.chat().unwrap();
        let turns = ["Hello", "Again", "Hello"];
        let expected: Vec<_> = turns.map(|text| turn(&mut chat, text, &drawn)).into();
        let known = Arc::new(Mutex::new(chat.model().tokens().to_vec()));

        let mut model = load(device.clone(), 512);
        model.speculate(Some(Speculation::new(Odd::new(&known, 3)).always()));
        let mut chat = model.chat().unwrap();
        let (first, usage) = turn(&mut chat, turns[0], &drawn);
        assert_eq!((&first, usage.cached), (&expected[0].0, expected[0].1.cached));
        let saved = chat.save().unwrap();

        let mut other = load(device, 300);
        other.speculate(Some(Speculation::new(Odd::new(&known, 5)).always()));
        let mut chat = other.restore_chat(&saved).unwrap();
        for (text, (expected, plain)) in turns.iter().zip(&expected).skip(1) {
            let (found, usage) = turn(&mut chat, text, &drawn);
            assert_eq!(&found, expected);
            assert_eq!((usage.cached, usage.tokens), (plain.cached, plain.tokens));
        }
    }
}

fn draft_model(model: &Model, file: &Gguf, device: Arc<dyn Device>) -> Result<DraftModel> {
    let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
    DraftModel::new(file, model.tokenizer(), device, options, &mut |_| ())
}

#[test]
fn a_model_drafts_for_another_and_for_itself_without_a_miss() {
    for device in devices() {
        let name = device.info().name.clone();
        let mut model = load(device.clone(), 128);
        for sampling in rows() {
            let sampling = Sampling { budget: 30, ..sampling };
            model.clear();
            model.speculate(None);
            let (plain, _) = told(&mut model, "Twice", &sampling);
            for (seed, same) in [(1, true), (2, false)] {
                let drafter = draft_model(&model, &file(seed), device.clone()).unwrap();
                model.clear();
                model.speculate(Some(Speculation::new(drafter).always()));
                let (found, usage) = told(&mut model, "Twice", &sampling);
                assert_same(found, plain.clone(), &name, &format!("{sampling:?}"));
                let drafts = usage.drafts.unwrap();
                assert!(drafts.drafted > 0, "{drafts:?}");
                if same && !matches!(plain.end, End::Token(_)) {
                    assert_eq!(drafts.kept, drafts.drafted, "{name} {sampling:?}");
                }
            }
        }
    }
}

#[test]
fn a_draft_model_of_another_vocabulary_is_refused() {
    let model = load(cpu(), 64);
    let (_, shape) = &tiny::shapes()[0];
    let none = Gguf::from_bytes(tiny::file("llama", shape, |_| ())).unwrap();
    assert!(matches!(draft_model(&model, &none, cpu()), Err(Error::NoVocabulary { .. })));
    let other = bytes::odd_file(1, "<|theend|>", None);
    let error = draft_model(&model, &other, cpu()).unwrap_err();
    assert!(matches!(error, Error::OtherVocabulary { token: Some(258), .. }), "{error}");
    assert!(error.to_string().contains("another vocabulary"), "{error}");
}

/// Drafts that are never right.
struct Wrong;

impl Drafter for Wrong {
    fn kind(&mut self, _: &[u32]) -> Option<usize> {
        Some(2)
    }

    fn draft(&mut self, _: &[u32], most: usize, _: &Sampling) -> Result<Vec<u32>> {
        Ok(vec![256; most])
    }

    fn is_free(&self) -> bool {
        false
    }
}

#[test]
fn drafts_that_are_never_right_are_given_up() {
    let mut model = load(cpu(), 1024);
    model.speculate(Some(Speculation::new(Wrong)));
    let (_, usage) = told(&mut model, "No", &endless(900));
    let drafts = usage.drafts.unwrap();
    assert!(drafts.drafts > 0 && drafts.drafted < 100, "{drafts:?}");
    assert_eq!((drafts.kept, drafts.tokens), (0, 899));
    assert_eq!(drafts.steps, 899);
}

#[test]
fn a_text_that_repeats_takes_few_steps() {
    // One token may come, so that the text repeats it.
    let mask = Some(Arc::new(TokenMask::new([65])));
    let sampling = Sampling { mask, budget: 200, ..Sampling::greedy() };
    let mut model = load(cpu(), 256);
    model.speculate(Some(Speculation::new(Ngrams::default()).always()));
    let (_, usage) = told(&mut model, "Repeat", &sampling);
    let drafts = usage.drafts.unwrap();
    assert!(drafts.steps < 40 && drafts.tokens_per_step() > 5.0, "{drafts:?}");
    assert_eq!(drafts.kept, drafts.drafted);
}

#[test]
fn steps_that_check_drafts_are_compiled_once() {
    for device in devices() {
        let Some(_) = device.host_work() else { continue };
        let mut model = load(device.clone(), 128);
        let sampling = Sampling { budget: 40, ..Sampling::greedy() };
        let (plain, _) = told(&mut model, "Steady", &sampling);
        let known = Arc::new(Mutex::new(plain.remembered.clone()));
        model.speculate(Some(Speculation::new(Odd::new(&known, 1)).always()));
        model.prepare(&sampling).unwrap();
        let mut texts = || {
            for seed in 0..4 {
                model.clear();
                model.speculate(Some(Speculation::new(Odd::new(&known, seed)).always()));
                assert_eq!(told(&mut model, "Steady", &sampling).0, plain);
            }
            device.host_work().unwrap()
        };
        // Runs of several steps have commands of their own for each length.
        let before = texts();
        let after = texts();
        assert_eq!(after.encodings, before.encodings);
        assert_eq!(after.allocations, before.allocations);
    }
}

/// Logits after each of these tokens: one at a time, and `count` at a time.
fn alone_and_together(engine: &mut Engine, tokens: &[u32], count: usize) -> [Vec<Vec<f32>>; 2] {
    engine.clear();
    let alone = tokens.iter().map(|&token| engine.eval(&[token]).unwrap()).collect();
    engine.clear();
    let parts = tokens.chunks(count).flat_map(|part| engine.eval_rows(part, Rows::All).unwrap());
    [alone, parts.collect()]
}

#[test]
fn rows_of_a_step_have_the_bits_of_single_tokens() {
    let (_, shape) = &tiny::shapes()[0];
    let plain = Gguf::from_bytes(tiny::file("llama", shape, |_| ())).unwrap();
    let tokens: Vec<u32> = (0..16).map(|i| i * 37 % 96).collect();
    for device in devices() {
        let name = device.info().name.clone();
        let types = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_1];
        let quantised = types.map(|dtype| (dtype.to_string(), tiny::quantised(&plain, dtype)));
        // Kernels of this one differ by the number of rows on every GPU.
        let bytes = [("bytes".to_owned(), file(1))];
        for (dtype, gguf) in quantised.into_iter().chain(bytes) {
            // The CPU needs no switch for it.
            let deterministic = name != "cpu";
            let options =
                EngineOptions { context: Some(32), deterministic, ..EngineOptions::default() };
            let mut engine = Engine::new(&gguf, device.clone(), options).unwrap();
            for count in [2, 3, 4, 7, 8] {
                let [alone, together] = alone_and_together(&mut engine, &tokens, count);
                assert_eq!(alone, together, "{name} {dtype} {count}");
            }
        }
    }
}

#[test]
fn a_draft_that_leads_to_no_numbers_fails_nothing() {
    for device in devices() {
        let name = device.info().name.clone();
        // Whoever reads this token gets no numbers; no text does, as it may never come.
        let gguf = bytes::odd_file(3, "<|endoftext|>", Some(200));
        let options = EngineOptions { context: Some(96), ..EngineOptions::default() };
        let mut model = Model::new(&gguf, device, options, &mut |_| ()).unwrap();
        for sampling in [
            Sampling { budget: 40, ..Sampling::greedy() },
            Sampling { biases: vec![(200, f32::NEG_INFINITY)], ..endless(40) },
        ] {
            model.clear();
            model.speculate(None);
            let (plain, _) = told(&mut model, "Bad", &sampling);
            assert!(!plain.remembered.contains(&200));
            model.clear();
            model.speculate(Some(Speculation::new(Bad).always()));
            assert_eq!(told(&mut model, "Bad", &sampling).0, plain, "{name}");
        }
    }
}

/// Drafts of a token that leads to no numbers.
struct Bad;

impl Drafter for Bad {
    fn kind(&mut self, _: &[u32]) -> Option<usize> {
        Some(0)
    }

    fn draft(&mut self, text: &[u32], most: usize, _: &Sampling) -> Result<Vec<u32>> {
        Ok(vec![200; most.min(1 + text.len() % 4)])
    }

    fn is_free(&self) -> bool {
        true
    }
}
