//! What the fuzz target of request bodies calls.

use std::sync::OnceLock;
use std::task::{Context, Poll};

use clearway_llm::engine::Sampler;
use clearway_llm::text::{ChatTemplate, Tokenizer, Vocab};

use crate::api;
use crate::app::App;
use crate::backend::{Backend, End, Event, Events, Refused, Request, Stats, Ticket, Vectors};
use crate::config::Config;
use crate::log::LogFormat;
use crate::model::{Facts, Served};

/// Reads bytes as a request: the first byte names the endpoint, the others are its body. Says whether the request is
/// accepted.
///
/// # Panics
/// A refusal whose status is none of the client's.
pub fn fuzz_body(data: &[u8]) -> bool {
    static SHARED: OnceLock<Option<(App, Served)>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let config = Config { log: LogFormat::None, ..Config::default() };
        Some((App::new(config), served()?))
    });
    let (Some((app, served)), Some((&endpoint, body))) = (shared, data.split_first()) else {
        return false;
    };
    match api::prepare(endpoint, app, served, body) {
        Ok(()) => true,
        Err(error) => {
            assert!(error.status().is_client_error(), "{}", error.message());
            false
        }
    }
}

/// A model without weights.
pub fn served() -> Option<Served> {
    let mut tokens: Vec<String> = (33_u8..127).map(|byte| char::from(byte).to_string()).collect();
    tokens.extend(["Ġ", "Ċ", "{\"", "tr", "<end>"].map(String::from));
    let mut types = vec![1; tokens.len()];
    *types.last_mut()? = 3;
    let tokenizer = Tokenizer::new(&Vocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(String::as_bytes).collect(),
        token_types: Some(&types),
        merges: vec![b"t r"],
        eos: Some(tokens.len() as u32 - 1),
        ..Vocab::default()
    });
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think>";
    Some(Served {
        names: vec!["m".into()],
        adapters: vec!["a".into()],
        tokenizer: tokenizer.ok()?,
        template: ChatTemplate::new(source, None, None),
        context: 4096,
        facts: Facts::default(),
        backend: Box::new(Nothing),
    })
}

/// Takes everything and writes nothing.
struct Nothing;

impl Backend for Nothing {
    fn submit(&self, request: Request) -> Result<Ticket, Refused> {
        // The first mask is made, so that what grammars do is tried, too.
        let mut sampler = Sampler::new(request.sampling);
        sampler.sample(&[0.0; 99], &[]);
        Ok(Ticket::new(Ended))
    }

    fn embed(&self, texts: Vec<Vec<u32>>) -> Result<Vectors, Refused> {
        Ok(Box::pin(async move { Ok(texts.iter().map(|_| Vec::new()).collect()) }))
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

struct Ended;

impl Events for Ended {
    fn poll(&mut self, _: &mut Context<'_>) -> Poll<Event> {
        Poll::Ready(Event::End(End::Stop))
    }
}
