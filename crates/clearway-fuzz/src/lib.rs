//! Fuzz targets: one function for each parser that reads bytes from outside.
//!
//! A target takes any bytes and must not panic, hang or take much memory; what it accepts must keep the parser's
//! promises. The functions are called by libFuzzer (`fuzz/`, nightly toolchain), by the loop of this crate's program
//! (stable toolchain, `cargo run -p clearway-fuzz`), and by tests, which keep what was found.
//!
//! | target | bytes are |
//! |---|---|
//! | [`gguf`] | a model file, its hyper-parameters and its vocabulary |
//! | [`tokenizer`] | a vocabulary and a text |
//! | [`template`] | a chat template |
//! | [`plan`] | a placement problem as CSV |
//! | [`hub`] | answers of a hub |
//! | [`http`] | the body of a request to the server |

// A target fails as a test does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod gguf;
pub mod http;
pub mod hub;
pub mod mutate;
pub mod plan;
mod seeds;
pub mod template;
pub mod tokenizer;

/// A parser under test.
pub struct Target {
    /// Name on the command line, of the libFuzzer target and of its corpus.
    pub name: &'static str,
    /// Tries some bytes; says whether the parser accepted them.
    pub run: fn(&[u8]) -> bool,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that decide how an input is read.
    pub words: &'static [&'static [u8]],
}

/// Every target.
pub static TARGETS: [Target; 6] = [
    Target { name: "gguf", run: gguf::fuzz_one, seeds: seeds::gguf, words: seeds::GGUF_WORDS },
    Target {
        name: "tokenizer",
        run: tokenizer::fuzz_tokenizer,
        seeds: seeds::tokenizer,
        words: seeds::TOKENIZER_WORDS,
    },
    Target {
        name: "template",
        run: template::fuzz_template,
        seeds: seeds::template,
        words: seeds::TEMPLATE_WORDS,
    },
    Target { name: "plan", run: plan::fuzz_plan, seeds: seeds::plan, words: seeds::PLAN_WORDS },
    Target { name: "hub", run: hub::fuzz_hub, seeds: seeds::hub, words: seeds::HUB_WORDS },
    Target { name: "http", run: http::fuzz_http, seeds: seeds::http, words: seeds::HTTP_WORDS },
];

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_target_accepts_one_of_its_seeds_and_refuses_some_bytes() {
        for target in &TARGETS {
            let seeds = (target.seeds)();
            assert!(seeds.iter().any(|seed| (target.run)(seed)), "{}", target.name);
            assert!(!(target.run)(b"{{ ,\xff"), "{}", target.name);
        }
    }

    #[test]
    fn the_loop_repeats_itself_and_keeps_what_broke() {
        // Breaks on what only several changes of the seed lead to.
        let broken = Target {
            name: "broken",
            run: |data| {
                assert!(!(data.len() > 6 && data.contains(&b'x')), "found");
                true
            },
            seeds: || vec![b"abc".to_vec()],
            words: &[b"xyz"],
        };
        let found = || mutate::run(&broken, 7, Duration::from_secs(20)).unwrap_err();
        let (first, second) = (found(), found());
        assert!(first.input.len() > 6 && first.message.contains("found"), "{first:?}");
        assert_eq!((first.case, &first.input), (second.case, &second.input));
        let sound = Target { run: |_| true, ..broken };
        assert!(mutate::run(&sound, 7, Duration::from_millis(50)).unwrap() > 100);
    }
}
