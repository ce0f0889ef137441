//! `clearway bench --spec`: texts with and without drafts, in turns.

mod trace;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clearway::Device;
use clearway_llm::engine::chat_template;
use clearway_llm::speculate::DraftCounts;
use clearway_llm::text::{ChatMessage, ChatOptions, EncodeOptions};
use clearway_llm::{Model, Sampling, Speculation};
use serde_json::json;

use super::{Args, cpu_time};
use crate::model;
use crate::out;
use trace::{Trace, Traced};

/// Texts that are measured where none is named: one whose answer quotes it, and one whose answer does not.
const TEXTS: [(&str, &str); 2] =
    [("quote", include_str!("texts/quote.txt")), ("free", include_str!("texts/free.txt"))];

/// One reply.
struct Run {
    /// Tokens that steps gave: all but the first, which comes with the prompt.
    tokens: usize,
    time: Duration,
    cpu: Option<Duration>,
    drafts: DraftCounts,
    text: String,
}

/// Measures each text.
pub fn run(args: &Args) -> Result<()> {
    let count = args.n_gen.first().copied().unwrap_or(0);
    anyhow::ensure!(count > 1, "--spec needs tokens to generate (-n), more than one");
    let texts: Vec<(&str, String)> = match &args.file {
        Some(file) => vec![("file", content(file)?)],
        None => TEXTS.map(|(name, text)| (name, text.to_owned())).into(),
    };
    let (mut model, device) = open(args)?;
    let sampling = Sampling { temperature: args.temp, budget: count, ..Sampling::default() };
    args.spec.apply(&mut model, &device, &args.engine)?;
    model.prepare(&sampling)?;
    let mut speculation = model.speculate(None);
    model.prepare(&sampling)?;
    let mut table = Table::new(args)?;
    let mut traces = Vec::new();
    for (name, text) in &texts {
        let prompt = prompt(&model, text)?;
        let pairs = pairs(&mut model, &mut speculation, args, &prompt, &sampling)?;
        table.add(name, &pairs)?;
        if args.write_trace.is_some() {
            once(&mut model, None, &prompt, &sampling)?;
            traces.push(Trace::of_ngrams(name, model.tokens(), prompt.len())?.object());
        }
    }
    if let Some(file) = &args.write_trace {
        std::fs::write(file, serde_json::Value::from(traces).to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    table.end()
}

/// Measures a model with drafts that fare as those of another text did.
pub fn run_traces(args: &Args, file: &Path) -> Result<()> {
    let traces = trace::read(&content(file)?).with_context(|| file.display().to_string())?;
    let (mut model, _) = open(args)?;
    let mut table = Table::new(args)?;
    for trace in traces {
        let sampling = Sampling { budget: trace.answer(), ..Sampling::greedy() };
        let vocab = model.engine().shape().vocab as u64;
        let token = |i: usize| ((i as u64 + 1).wrapping_mul(2_654_435_761) % vocab) as u32;
        let prompt: Vec<u32> = (0..trace.prompt).map(token).collect();
        model.prepare(&sampling)?;
        let (plain, _) = once(&mut model, None, &prompt, &sampling)?;
        anyhow::ensure!(
            plain.tokens + 1 == trace.answer(),
            "the text of this model ends after {} tokens, the trace `{}` has {}",
            plain.tokens + 1,
            trace.name,
            trace.answer()
        );
        let (name, text) = (trace.name.clone(), model.tokens().to_vec());
        let mut speculation = Some(Speculation::new(Traced { trace, text }));
        let pairs = pairs(&mut model, &mut speculation, args, &prompt, &sampling)?;
        table.add(&name, &pairs)?;
    }
    table.end()
}

fn content(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The model, and the device that drafts are made on.
fn open(args: &Args) -> Result<(Model, Arc<dyn Device>)> {
    let adapters = args.lora.for_all()?;
    let gguf = args.name.open()?;
    let options = args.engine.options(None);
    let devices = args.engine.layers.devices(&gguf, &adapters, &args.device, &options)?;
    let device = devices.last().clone();
    Ok((model::load_model(&gguf, &adapters, devices, options)?, device))
}

/// Replies without drafts and with them in turns. The first pair, which reads the prompt and warms up, is left out.
fn pairs(
    model: &mut Model,
    speculation: &mut Option<Speculation>,
    args: &Args,
    prompt: &[u32],
    sampling: &Sampling,
) -> Result<Vec<(Run, Run)>> {
    let mut pairs = Vec::new();
    for _ in 0..=args.repetitions {
        let plain = once(model, None, prompt, sampling)?.0;
        let (drafted, back) = once(model, speculation.take(), prompt, sampling)?;
        *speculation = back;
        pairs.push((plain, drafted));
    }
    pairs.remove(0);
    Ok(pairs)
}

/// Lines for people, or objects.
struct Table {
    json: bool,
    objects: Vec<serde_json::Value>,
}

impl Table {
    fn new(args: &Args) -> Result<Self> {
        if !args.json {
            out::line(
                "| text  | tokens | t/s plain | t/s drafts | ratio | of cpu time | drafts | tokens each | kept | tokens a step | text   |",
            )?;
            out::line(
                "| ----- | -----: | --------: | ---------: | ----: | ----------: | -----: | ----------: | ---: | ------------: | ------ |",
            )?;
        }
        Ok(Self { json: args.json, objects: Vec::new() })
    }

    fn add(&mut self, name: &str, pairs: &[(Run, Run)]) -> Result<()> {
        let found = Found::new(pairs);
        if self.json {
            self.objects.push(found.object(name, pairs));
            return Ok(());
        }
        out::line(&found.row(name))
    }

    fn end(self) -> Result<()> {
        if self.json { out::json(&self.objects.into()) } else { Ok(()) }
    }
}

/// The tokens of a text as the model is asked: through its template where it has one.
fn prompt(model: &Model, text: &str) -> Result<Vec<u32>> {
    match chat_template(model.file(), model.tokenizer()) {
        Ok(template) => {
            let messages = [ChatMessage::new("user", text.trim())];
            let prompt = template.render(&messages, &ChatOptions::default())?;
            Ok(model.tokenizer().encode_chat(&prompt)?)
        }
        Err(_) => Ok(model.tokenizer().encode(text, EncodeOptions::PROMPT)?),
    }
}

fn once(
    model: &mut Model,
    speculation: Option<Speculation>,
    prompt: &[u32],
    sampling: &Sampling,
) -> Result<(Run, Option<Speculation>)> {
    model.speculate(speculation);
    let mut reply = model.reply(prompt.to_vec(), sampling)?;
    let mut text = String::new();
    // The first token comes with the prompt.
    for piece in reply.by_ref().take(1) {
        text += &piece?.text;
    }
    let before = cpu_time();
    for piece in reply.by_ref() {
        text += &piece?.text;
    }
    let cpu = before.zip(cpu_time()).map(|(a, b)| b.all.saturating_sub(a.all));
    let usage = reply.usage();
    drop(reply);
    let run = Run {
        tokens: usage.decode.tokens,
        time: usage.decode.time,
        cpu,
        drafts: usage.drafts.unwrap_or_default(),
        text,
    };
    Ok((run, model.speculate(None)))
}

/// What pairs of runs have in common.
struct Found {
    tokens: usize,
    plain: f64,
    drafted: f64,
    ratio: f64,
    cpu_ratio: Option<f64>,
    drafts: DraftCounts,
    same: bool,
}

impl Found {
    fn new(pairs: &[(Run, Run)]) -> Self {
        let rate = |run: &Run| run.tokens as f64 / run.time.as_secs_f64().max(1e-9);
        let of_cpu = |run: &Run| Some(run.tokens as f64 / run.cpu?.as_secs_f64().max(1e-9));
        let cpu = pairs.iter().map(|(a, b)| Some(of_cpu(b)? / of_cpu(a)?));
        Self {
            tokens: pairs.last().map_or(0, |(_, drafted)| drafted.tokens),
            plain: median(pairs.iter().map(|(plain, _)| rate(plain))),
            drafted: median(pairs.iter().map(|(_, drafted)| rate(drafted))),
            ratio: median(pairs.iter().map(|(plain, drafted)| rate(drafted) / rate(plain))),
            cpu_ratio: cpu.collect::<Option<Vec<f64>>>().map(|all| median(all.into_iter())),
            drafts: pairs.last().map_or_else(DraftCounts::default, |(_, drafted)| drafted.drafts),
            same: pairs.iter().all(|(plain, drafted)| plain.text == drafted.text),
        }
    }

    fn row(&self, name: &str) -> String {
        let Self { tokens, plain, drafted, ratio, .. } = self;
        let counts = &self.drafts;
        let cpu = self.cpu_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let each = counts.drafted as f64 / counts.drafts.max(1) as f64;
        let (kept, per_step) = (100.0 * counts.kept_share(), counts.tokens_per_step());
        let same = if self.same { "same" } else { "differs" };
        format!(
            "| {name:<5} | {tokens:>6} | {plain:>9.1} | {drafted:>10.1} | {ratio:>5.2} | {cpu:>11} | {:>6} | {each:>11.1} | \
             {kept:>3.0}% | {per_step:>13.2} | {same:<7}|",
            counts.drafts
        )
    }

    fn object(&self, name: &str, pairs: &[(Run, Run)]) -> serde_json::Value {
        let seconds =
            |run: &Run| json!([run.time.as_secs_f64(), run.cpu.map(|cpu| cpu.as_secs_f64())]);
        json!({
            "text": name,
            "tokens": self.tokens,
            "plain_ts": self.plain,
            "drafted_ts": self.drafted,
            "ratio": self.ratio,
            "cpu_ratio": self.cpu_ratio,
            "drafts": self.drafts.drafts,
            "drafted": self.drafts.drafted,
            "kept": self.drafts.kept,
            "tokens_per_step": self.drafts.tokens_per_step(),
            "same_text": self.same,
            "seconds": pairs.iter().map(|(a, b)| json!([seconds(a), seconds(b)])).collect::<Vec<_>>(),
        })
    }
}

/// The upper of both in the middle of an even number.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_pairs() {
        let run = |tokens, ms| Run {
            tokens,
            time: Duration::from_millis(ms),
            cpu: Some(Duration::from_millis(2 * ms)),
            drafts: DraftCounts::default(),
            text: String::new(),
        };
        // A machine that was busy during the second pair.
        let pairs = [(100, 50), (900, 450), (100, 25)].map(|(a, b)| (run(10, a), run(10, b)));
        let found = Found::new(&pairs);
        assert_eq!((found.ratio, found.plain, found.drafted), (2.0, 100.0, 200.0));
        assert_eq!(found.cpu_ratio, Some(2.0));
        assert!(found.same);
    }
}
