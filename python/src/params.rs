//! A row of sampling data from a Python object: the attributes of `clearway.SamplingParams`.

use clearway_llm::Sampling;
use clearway_llm::engine::{Penalties, TextConstraint};
use clearway_llm::grammar::{Grammar, Grammars};
use pyo3::prelude::*;
use serde_json::Value;

use crate::error;

/// The attributes that the native part reads.
#[derive(FromPyObject)]
pub struct Params {
    pub n: usize,
    seed: u64,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    penalty_window: usize,
    logit_bias: Vec<(u32, f32)>,
    allowed_token_ids: Option<Vec<u32>>,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    max_tokens: usize,
    pub logprobs: Option<usize>,
    pub priority: i32,
    /// Kind and source of a grammar.
    grammar: Option<(String, String)>,
    /// Index of the adapter that acts on the text.
    adapter: Option<u32>,
}

impl Params {
    /// The grammar that the text follows.
    pub fn grammar(&self) -> PyResult<Option<Grammar>> {
        let Some((kind, source)) = &self.grammar else { return Ok(None) };
        let grammar = match kind.as_str() {
            "json" => {
                let schema: Result<Value, _> = serde_json::from_str(source);
                let wrong = |problem: serde_json::Error| {
                    let message = format!("the schema is no JSON: {problem}");
                    error::exception("GrammarError", &message, &[])
                };
                Grammar::JsonSchema(schema.map_err(wrong)?)
            }
            "regex" => Grammar::Regex(source.clone()),
            "lark" => Grammar::Lark(source.clone()),
            _ => Grammar::JsonObject,
        };
        Ok(Some(grammar))
    }

    /// The row of text `choice`, which has a seed and a constraint of its own.
    pub fn row(&self, choice: usize, grammar: Option<(&Grammars, &Grammar)>) -> PyResult<Sampling> {
        let constraint = match grammar {
            None => None,
            Some((grammars, grammar)) => {
                let constraint =
                    grammars.compile(grammar).map_err(|problem| error::grammar(&problem))?;
                Some(TextConstraint::new(constraint))
            }
        };
        let mask = self.allowed_token_ids.as_ref();
        Ok(Sampling {
            seed: self.seed.wrapping_add(choice as u64),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            penalties: Penalties {
                window: self.penalty_window,
                repeat: self.repetition_penalty,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
            },
            biases: self.logit_bias.clone(),
            mask: mask
                .map(|tokens| clearway_llm::engine::TokenMask::new(tokens.iter().copied()).into()),
            constraint,
            // The chosen token alone needs a request for one.
            log_probs: self.logprobs.map_or(0, |count| count.max(1)),
            stop_tokens: self.stop_token_ids.clone(),
            stop_strings: self.stop.clone(),
            budget: self.max_tokens,
            adapter: self.adapter,
        })
    }
}
