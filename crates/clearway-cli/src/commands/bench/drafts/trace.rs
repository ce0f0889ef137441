//! Traces of drafts: how drafts of a real text fared, to be repeated with another model.
//!
//! A model of random weights quotes nothing, so no draft of its text is right. A trace says for each place of a real answer whether
//! there was a draft, how sure it was, how long it could be and how many of its tokens were right. [`Traced`] drafts tokens of which as many are
//! right, for any model whose text is known. Steps, their rows and what is learned about their worth are those of any draft.

use anyhow::{Context, Result, bail};
use clearway_llm::Sampling;
use clearway_llm::speculate::worth::{KINDS, LONGEST};
use clearway_llm::speculate::{Drafter, Ngrams};
use serde_json::{Value, json};

/// A draft at a place of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Draft {
    kind: usize,
    tokens: usize,
    /// Tokens of it that are right.
    right: usize,
}

/// Drafts of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    pub(super) name: String,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// By the number of tokens of the answer that are there before; the first comes with the prompt.
    drafts: Vec<Option<Draft>>,
}

impl Trace {
    /// Drafts from the text itself, for a text whose answer begins behind `prompt` tokens.
    pub(super) fn of_ngrams(name: &str, text: &[u32], prompt: usize) -> Result<Self> {
        let mut ngrams = Ngrams::default();
        let mut drafts = vec![None];
        for end in prompt + 1..text.len() {
            let (before, behind) = text.split_at(end);
            let Some(kind) = ngrams.kind(before) else {
                drafts.push(None);
                continue;
            };
            let draft = ngrams.draft(before, LONGEST, &Sampling::greedy())?;
            let right = draft.iter().zip(behind).take_while(|(a, b)| a == b).count();
            drafts.push(Some(Draft { kind, tokens: draft.len(), right }));
        }
        Ok(Self { name: name.to_owned(), prompt, drafts })
    }

    /// Tokens of the answer.
    pub(super) fn answer(&self) -> usize {
        self.drafts.len()
    }

    pub(super) fn object(&self) -> Value {
        let drafts = self.drafts.iter().map(|draft| match draft {
            Some(Draft { kind, tokens, right }) => json!([kind, tokens, right]),
            None => Value::Null,
        });
        json!({ "text": self.name, "prompt": self.prompt, "drafts": drafts.collect::<Vec<_>>() })
    }

    fn from_object(object: &Value) -> Option<Self> {
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let draft = |value: &Value| {
            if value.is_null() {
                return Some(None);
            }
            let [kind, tokens, right] = value.as_array()?.as_slice() else { return None };
            let draft =
                Draft { kind: number(kind)?, tokens: number(tokens)?, right: number(right)? };
            let sound = draft.kind < KINDS && draft.right <= draft.tokens;
            (sound && (1..=LONGEST).contains(&draft.tokens)).then_some(Some(draft))
        };
        let drafts = object["drafts"].as_array()?.iter().map(draft).collect::<Option<Vec<_>>>()?;
        let prompt = number(&object["prompt"])?;
        let sound = prompt > 0 && drafts.len() > 1;
        sound.then_some(Self { name: object["text"].as_str()?.to_owned(), prompt, drafts })
    }
}

/// Reads the traces of a file.
pub(super) fn read(text: &str) -> Result<Vec<Trace>> {
    let value: Value = serde_json::from_str(text).context("a file of traces is JSON")?;
    let traces = value.as_array().map(|all| all.iter().map(Trace::from_object).collect());
    match traces {
        Some(Some(traces)) if !Vec::is_empty(&traces) => Ok(traces),
        _ => bail!(
            "these are no traces; `clearway bench --spec ngram --write-trace FILE` writes some"
        ),
    }
}

/// Drafts for a text that is known, as far right as the trace says.
pub(super) struct Traced {
    pub(super) trace: Trace,
    /// The whole text, the prompt included.
    pub(super) text: Vec<u32>,
}

impl Traced {
    fn at(&self, text: &[u32]) -> Option<Draft> {
        *self.trace.drafts.get(text.len().checked_sub(self.trace.prompt)?)?
    }
}

impl Drafter for Traced {
    fn kind(&mut self, text: &[u32]) -> Option<usize> {
        self.at(text).map(|draft| draft.kind)
    }

    fn draft(
        &mut self,
        text: &[u32],
        most: usize,
        _: &Sampling,
    ) -> clearway_llm::engine::Result<Vec<u32>> {
        let Some(draft) = self.at(text) else { return Ok(Vec::new()) };
        let token = |index: usize| {
            let known = self.text.get(text.len() + index).copied();
            match known {
                Some(token) if index < draft.right => token,
                // Another small number, which every vocabulary has.
                known => u32::from(known == Some(0)),
            }
        };
        Ok((0..draft.tokens.min(most)).map(token).collect())
    }

    fn is_free(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_says_how_drafts_fared_and_is_read_as_it_was_written() {
        // The answer quotes 1 2 3 4 5 and goes on with something else.
        let text = [1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 4, 7, 6];
        let trace = Trace::of_ngrams("quote", &text, 7).unwrap();
        assert_eq!(trace.answer(), 6);
        // After `1 2`: a match of two tokens, `3 4` of the draft are right.
        let draft = trace.drafts[2].unwrap();
        assert_eq!((draft.kind, draft.tokens, draft.right), (0, LONGEST, 2));
        assert_eq!([trace.drafts[0], trace.drafts[1]], [None, None]);
        let written = Value::from(vec![trace.object()]).to_string();
        assert_eq!(read(&written).unwrap(), [trace]);
        for wrong in
            ["", "[]", "{}", "[{}]", r#"[{"text": "a", "prompt": 1, "drafts": [null, [9, 1, 1]]}]"#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn drafts_are_right_as_far_as_the_trace_says() {
        let trace = Trace::of_ngrams("quote", &[1, 2, 3, 4, 5, 9, 8, 1, 2, 3, 4, 7, 6], 7).unwrap();
        let text = vec![50, 51, 52, 53, 54, 55, 56, 60, 61, 62, 63, 64, 65];
        let mut traced = Traced { trace, text: text.clone() };
        assert_eq!(traced.kind(&text[..8]), None);
        assert_eq!(traced.kind(&text[..9]), Some(0));
        let draft = traced.draft(&text[..9], 3, &Sampling::greedy()).unwrap();
        assert_eq!(draft, [62, 63, 0]);
    }
}
