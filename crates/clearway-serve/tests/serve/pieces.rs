//! How tokens become pieces of a stream, over an engine that says when which tokens come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearway_llm::gguf::Gguf;
use clearway_serve::backend::{
    Backend, End, Event, Events, Failure, Refused, Request, Stats, Ticket,
};
use clearway_serve::{Served, Server};
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::server::{CONTEXT, MODEL, Setup, model, until};

/// Time between two deliveries.
const PAUSE: Duration = Duration::from_millis(20);

/// An engine that delivers the prompt back: so many tokens at a time.
struct Echo {
    groups: Vec<usize>,
    fails: bool,
}

impl Backend for Echo {
    fn submit(&self, request: Request) -> Result<Ticket, Refused> {
        let mut tokens = request.prompt.into_iter();
        let mut groups: VecDeque<VecDeque<Event>> = VecDeque::new();
        for &count in &self.groups {
            let token = |token| Event::Token { token, log_probs: None };
            groups.push_back(tokens.by_ref().take(count).map(token).collect());
        }
        groups[0].push_front(Event::Started { cached: 0 });
        let last = match self.fails {
            true => Event::Failed(Failure::Engine("it broke".into())),
            false => Event::End(End::Length),
        };
        groups.back_mut().unwrap().push_back(last);
        Ok(Ticket::new(Deliveries { groups, gate: Arc::default(), waits: false }))
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// Groups of events, each behind a gate that opens after a pause.
struct Deliveries {
    groups: VecDeque<VecDeque<Event>>,
    gate: Arc<Mutex<(bool, Option<Waker>)>>,
    waits: bool,
}

impl Events for Deliveries {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let mut gate = self.gate.lock().unwrap();
        if self.groups[0].is_empty() {
            self.groups.pop_front();
            *gate = (false, None);
            self.waits = false;
        }
        if !gate.0 {
            gate.1 = Some(context.waker().clone());
            if !std::mem::replace(&mut self.waits, true) {
                let gate = self.gate.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(PAUSE);
                    let (open, waker) = &mut *gate.lock().unwrap();
                    *open = true;
                    waker.take().unwrap().wake();
                });
            }
            return Poll::Pending;
        }
        Poll::Ready(self.groups[0].pop_front().unwrap())
    }
}

fn with_echo(
    groups: &[usize],
    fails: bool,
    ask: impl FnOnce(&Client) -> Answer,
) -> (Answer, String) {
    let backend = Echo { groups: groups.to_vec(), fails };
    let server = Server::bind(Setup::default().config).unwrap();
    let address = server.address();
    let client = Client::new(address.strip_prefix("http://").unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let thread = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let made = move || {
                let file = Gguf::open(model()).map_err(|error| error.to_string())?;
                Served::new(vec![MODEL.into()], &file, CONTEXT, 4096, Box::new(backend))
                    .map_err(|error| error.to_string())
            };
            server.run(made, |_| (), move || stop.load(Ordering::SeqCst))
        })
    };
    until("ready", || client.get("/health").status == 200);
    let answer = ask(&client);
    let metrics = client.get("/metrics").body;
    stop.store(true, Ordering::SeqCst);
    thread.join().unwrap().unwrap();
    (answer, metrics)
}

fn ask(client: &Client) -> Answer {
    // Letters, each a token of its own.
    let prompt: Vec<u32> = (b'a'..=b'h').map(u32::from).collect();
    client.post(
        "/v1/completions",
        &json!({ "prompt": prompt, "max_tokens": 8, "stream": true, "return_token_ids": true }),
    )
}

fn pieces(answer: &Answer) -> Vec<Vec<u64>> {
    let ids = |event: &Value| {
        let ids = event["choices"][0]["token_ids"].as_array()?;
        Some(ids.iter().filter_map(Value::as_u64).collect())
    };
    answer.events().iter().filter_map(ids).collect()
}

#[test]
fn tokens_that_come_together_are_one_piece_and_share_the_time() {
    let (answer, metrics) = with_echo(&[1, 4, 3], false, ask);
    assert_eq!(answer.status, 200, "{answer:?}");
    let lengths: Vec<usize> = pieces(&answer).iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 4, 3], "{answer:?}");
    let ids: Vec<u64> = pieces(&answer).into_iter().flatten().collect();
    assert_eq!(ids, (b'a'..=b'h').map(u64::from).collect::<Vec<_>>());
    // Four tokens after 20 ms are 5 ms apart: none of them came at once.
    let name = "clearway_time_between_tokens_seconds";
    let least = format!("{name}_bucket{{model_name=\"{MODEL}\",le=\"0.003\"}} 0");
    let all = format!("{name}_count{{model_name=\"{MODEL}\"}} 7");
    for line in [least, all] {
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}

#[test]
fn tokens_that_come_with_a_failure_are_sent_before_it() {
    let (answer, _) = with_echo(&[2, 3], true, ask);
    let lengths: Vec<usize> = pieces(&answer).iter().map(Vec::len).collect();
    assert_eq!(lengths, [2, 3], "{answer:?}");
    assert!(answer.body.contains("it broke"), "{answer:?}");
}
