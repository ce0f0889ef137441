//! The service: many threads, streams that are dropped, a device that fails, an end in order.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use clearway_llm::batch::request::{EndReason, Failure, Refusal, Request};
use clearway_llm::batch::runner::{Limits, Runner, SlotTokens, Work};
use clearway_llm::batch::schedule::Decided;
use clearway_llm::batch::service::{Output, Service, ServiceOptions, Stream};
use clearway_llm::batch::text::{TextOutput, TextStream};
use clearway_llm::engine::Embedding;
use clearway_llm::text::{Tokenizer, Vocab};
use clearway_llm::{End, Error};

use super::drive::{prompt, request, roomy};
use super::sim::{END, Sim, Speed, alone};

fn service(limits: Limits, change: impl FnOnce(&mut Sim)) -> Service {
    let mut sim = Sim::new(limits, 7);
    change(&mut sim);
    let options = ServiceOptions {
        end_tokens: vec![END],
        vocab: Some(64),
        queue: 64,
        ..ServiceOptions::default()
    };
    Service::new(Box::new(sim), options).unwrap()
}

/// The tokens of text 0 and why it ended.
fn collect(stream: Stream) -> (Vec<u32>, EndReason) {
    let mut tokens = Vec::new();
    for output in stream {
        match output {
            Output::Tokens { choice: 0, tokens: new, .. } => {
                tokens.extend(new.iter().map(|chosen| chosen.token));
            }
            Output::End { choice: 0, reason, usage } => {
                assert_eq!(usage.generated, tokens.len());
                return (tokens, reason);
            }
            _ => {}
        }
    }
    panic!("a stream without an end");
}

/// Waits until something holds.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what} does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_of_many_threads_get_what_they_get_alone() {
    let service = service(Limits { slots: 8, blocks: 64, context: 256, ..roomy() }, |_| ());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let service = service.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let prompt = prompt(20 + round, thread);
                    let stream = service.submit(request(prompt.clone(), 30)).unwrap();
                    let (tokens, reason) = collect(stream);
                    assert!(matches!(reason, EndReason::Budget));
                    assert_eq!(tokens, alone(&prompt, 0, 30, &[]).0);
                }
            });
        }
    });
    let numbers = service.stats().numbers();
    assert_eq!((numbers.requests, numbers.ended_by_budget, numbers.failed), (160, 160, 0));
    assert_eq!(service.stats().queued(), 0);
    assert_eq!(service.stats().first_token.read().count(), 160);
    assert_eq!(service.stats().between_tokens.read().count(), 160 * 29);
    assert!(service.stats().host_per_step.read().count() > 0);
    assert!(service.decisions().iter().all(|decision| decision.to_json().starts_with('{')));
    wait_until("blocks come back", || service.stats().numbers().blocks_in_use == 0);
}

#[test]
fn a_stream_that_is_dropped_cancels_its_request() {
    let slow = Speed { step: Duration::from_millis(2), ..Speed::default() };
    let service = service(roomy(), |sim| (sim.really, sim.speed) = (true, slow));
    let mut stream = service.submit(request(prompt(20, 1), 10_000)).unwrap();
    assert!(matches!(stream.next(), Some(Output::Tokens { .. })));
    drop(stream);
    wait_until("the request is cancelled", || service.stats().numbers().cancelled == 1);
    wait_until("its blocks are free", || service.stats().numbers().blocks_in_use == 0);
    // By its name, and one text of several.
    let stream = service.submit(request(prompt(20, 1), 10_000)).unwrap();
    service.cancel(stream.id());
    assert!(matches!(collect(stream).1, EndReason::Cancelled));
    let mut stream = service.submit(Request { n: 2, ..request(prompt(20, 1), 50) }).unwrap();
    stream.cancel_choice(1);
    let ends: Vec<(usize, bool)> = stream
        .by_ref()
        .filter_map(|output| match output {
            Output::End { choice, reason, .. } => {
                Some((choice, matches!(reason, EndReason::Cancelled)))
            }
            Output::Tokens { .. } => None,
        })
        .collect();
    assert!(ends.contains(&(1, true)) && ends.contains(&(0, false)), "{ends:?}");
    assert!(stream.is_over());
}

#[test]
fn a_full_queue_refuses_with_the_time_to_wait() {
    let slow = Speed { step: Duration::from_millis(5), ..Speed::default() };
    let limits = Limits { slots: 1, ..roomy() };
    let service = service(limits, |sim| (sim.really, sim.speed) = (true, slow));
    let mut first = service.submit(request(prompt(20, 1), 10_000)).unwrap();
    first.next().unwrap();
    wait_until("the slot is taken", || service.stats().numbers().decoding == 1);
    let waiting: Vec<Stream> =
        (0..64).map(|salt| service.submit(request(prompt(9, salt), 1)).unwrap()).collect();
    let refusal = service.submit(request(prompt(9, 1), 1)).map(|_| ()).unwrap_err();
    let Refusal::Full { waiting: 64, expected } = refusal else { panic!("{refusal}") };
    assert!(expected > Duration::ZERO);
    assert_eq!(service.stats().numbers().refused, 1);
    drop(waiting);
    wait_until("the queue is empty", || service.stats().queued() == 0);
    service.submit(request(prompt(9, 1), 1)).unwrap();
    let unknown = service.submit(request(vec![1, 64], 1)).map(|_| ()).unwrap_err();
    assert_eq!(unknown, Refusal::TokenOutOfRange { token: 64, vocab: 64 });
}

#[test]
fn requests_that_are_asked_for_together_begin_together_or_not_at_all() {
    let service = service(Limits { slots: 8, ..roomy() }, |_| ());
    let all = |count: u32| (0..count).map(|salt| request(prompt(20, salt), 5)).collect::<Vec<_>>();
    let streams = service.submit_all(all(8)).unwrap();
    for (salt, stream) in (0..).zip(streams) {
        assert_eq!(collect(stream).0, alone(&prompt(20, salt), 0, 5, &[]).0);
    }
    let admitted = service.decisions().into_iter().filter_map(|decision| {
        matches!(decision.what, Decided::Admitted { .. }).then_some(decision.work)
    });
    let admitted: Vec<u64> = admitted.collect();
    assert_eq!(admitted.len(), 8);
    assert!(admitted.iter().all(|work| *work == admitted[0]), "{admitted:?}");
    // 64 may wait beside 8 that run.
    wait_until("slots are free", || service.stats().numbers().decoding == 0);
    let refusal = service.submit_all(all(73)).map(|_| ()).unwrap_err();
    assert!(matches!(refusal, Refusal::Full { waiting: 0, .. }), "{refusal}");
    let mut wrong = all(3);
    wrong.push(request(vec![1, 64], 1));
    let refusal = service.submit_all(wrong).map(|_| ()).unwrap_err();
    assert_eq!(refusal, Refusal::TokenOutOfRange { token: 64, vocab: 64 });
    assert!(service.submit_all(Vec::new()).unwrap().is_empty());
    let numbers = service.stats().numbers();
    assert_eq!((numbers.requests, service.stats().queued()), (8, 0), "nothing was begun");
    assert!(service.drain(Duration::from_secs(20)));
    let refusal = service.submit_all(all(2)).map(|_| ()).unwrap_err();
    assert_eq!((refusal, service.stats().queued()), (Refusal::Draining, 0));
}

#[test]
fn draining_waits_and_then_cancels() {
    let slow = Speed { step: Duration::from_millis(2), ..Speed::default() };
    let start = || service(roomy(), |sim| (sim.really, sim.speed) = (true, slow));
    let service = start();
    let stream = service.submit(request(prompt(20, 1), 20)).unwrap();
    assert!(service.drain(Duration::from_secs(20)));
    assert!(matches!(collect(stream).1, EndReason::Budget));
    let refusal = service.submit(request(vec![1], 1)).map(|_| ()).unwrap_err();
    assert_eq!(refusal, Refusal::Draining);

    let service = start();
    let stream = service.submit(request(prompt(20, 1), 100_000)).unwrap();
    assert!(!service.drain(Duration::from_millis(50)));
    assert!(matches!(collect(stream).1, EndReason::Cancelled));
}

/// Fails the first works.
struct Fails {
    sim: Sim,
    starts: usize,
    finishes: usize,
}

impl Runner for Fails {
    fn limits(&self) -> Limits {
        self.sim.limits()
    }

    fn start(&mut self, work: &Work) -> Result<(), Error> {
        self.sim.fails[0] = if self.starts > 0 { 100 } else { 0 };
        self.starts = self.starts.saturating_sub(1);
        self.sim.start(work)
    }

    fn finish(&mut self) -> Result<Vec<SlotTokens>, Error> {
        self.sim.fails[1] = if self.finishes > 0 { 100 } else { 0 };
        self.finishes = self.finishes.saturating_sub(1);
        self.sim.finish()
    }
}

#[test]
fn after_a_failure_the_next_request_works() {
    for (starts, finishes) in [(1, 0), (0, 1), (1, 1)] {
        let runner = Fails { sim: Sim::new(roomy(), 7), starts, finishes };
        let service = Service::new(Box::new(runner), ServiceOptions::default()).unwrap();
        for _ in 0..starts + finishes {
            let (tokens, reason) = collect(service.submit(request(prompt(20, 1), 5)).unwrap());
            assert!(tokens.is_empty());
            let EndReason::Failed(Failure::Device(error)) = reason else { panic!("{reason:?}") };
            assert!(matches!(*error, Error::Context { wanted: 17 }));
        }
        let (tokens, _) = collect(service.submit(request(prompt(20, 1), 5)).unwrap());
        assert_eq!(tokens, alone(&prompt(20, 1), 0, 5, &[]).0);
    }
}

/// Panics in its first work.
struct Panics(Sim);

impl Runner for Panics {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn start(&mut self, _: &Work) -> Result<(), Error> {
        panic!("the device panics on purpose");
    }

    fn finish(&mut self) -> Result<Vec<SlotTokens>, Error> {
        Ok(Vec::new())
    }
}

#[test]
fn streams_of_a_thread_that_is_gone_end() {
    let service = Service::new(Box::new(Panics(Sim::new(roomy(), 1))), ServiceOptions::default());
    let service = service.unwrap();
    let stream = service.submit(request(prompt(20, 1), 5)).unwrap();
    assert!(matches!(collect(stream).1, EndReason::Failed(Failure::Gone)));
    wait_until("requests are refused", || service.submit(request(vec![1], 1)).is_err());
    assert!(service.drain(Duration::from_secs(5)));
}

/// Is lost once, in one of three ways, and then is nothing but a simulation.
struct Lost {
    sim: Sim,
    way: Option<Way>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Start,
    Finish,
    Panic,
}

fn lost() -> Error {
    clearway::GpuError::DeviceLost { device: "sim".into(), call: "test" }.into()
}

impl Runner for Lost {
    fn limits(&self) -> Limits {
        self.sim.limits()
    }

    fn start(&mut self, work: &Work) -> Result<(), Error> {
        match self.way {
            Some(Way::Start) => Err(lost()),
            Some(Way::Panic) => panic!("the device panics on purpose"),
            _ => self.sim.start(work),
        }
    }

    fn finish(&mut self) -> Result<Vec<SlotTokens>, Error> {
        let done = self.sim.finish();
        if self.way.is_some() { Err(lost()) } else { done }
    }

    fn embed(&mut self, text: &mut Embedding, _: usize) -> Result<Option<Vec<f32>>, Error> {
        if self.way.is_some() { Err(lost()) } else { Ok(Some(vec![text.tokens().len() as f32])) }
    }
}

#[test]
fn a_lost_device_is_opened_again() {
    for way in [Way::Start, Way::Finish, Way::Panic] {
        let limits = Limits { slots: 2, ..roomy() };
        let first = Lost { sim: Sim::new(limits, 7), way: Some(way) };
        let opened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&opened);
        let reopen = move || -> Result<Box<dyn Runner>, Error> {
            match count.fetch_add(1, Ordering::SeqCst) {
                // It takes a while until the device is back.
                0 => Err(lost()),
                _ => Ok(Box::new(Lost { sim: Sim::new(limits, 7), way: None })),
            }
        };
        let options = ServiceOptions::default();
        let service = Service::reopening(Box::new(first), options, Box::new(reopen)).unwrap();
        let ask = || collect(service.submit(request(prompt(20, 1), 5)).unwrap());
        // Lost under way, and again while it cannot be opened.
        for _ in 0..2 {
            let (tokens, reason) = ask();
            assert!(tokens.is_empty());
            assert!(matches!(reason, EndReason::Failed(Failure::Device(_))), "{way:?}: {reason:?}");
        }
        let (tokens, reason) = ask();
        assert!(matches!(reason, EndReason::Budget), "{way:?}: {reason:?}");
        assert_eq!(tokens, alone(&prompt(20, 1), 0, 5, &[]).0);
        assert_eq!(opened.load(Ordering::SeqCst), 2);
        assert_eq!(service.stats().numbers().reopened, 1);
        assert_eq!(service.stats().queued(), 0);
        assert!(service.drain(Duration::from_secs(5)));
    }
}

#[test]
fn texts_that_wait_go_on_after_the_device_was_lost() {
    let limits = Limits { slots: 1, ..roomy() };
    let slow = Speed { step: Duration::from_millis(2), ..Speed::default() };
    let mut sim = Sim::new(limits, 7);
    (sim.really, sim.speed) = (true, slow);
    let first = Lost { sim, way: Some(Way::Finish) };
    let reopen = move || -> Result<Box<dyn Runner>, Error> {
        Ok(Box::new(Lost { sim: Sim::new(limits, 7), way: None }))
    };
    let options = ServiceOptions::default();
    let service = Service::reopening(Box::new(first), options, Box::new(reopen)).unwrap();
    let streams: Vec<Stream> =
        (0..4).map(|n| service.submit(request(prompt(20, n), 5)).unwrap()).collect();
    let failed = |(_, reason): &(_, EndReason)| matches!(reason, EndReason::Failed(_));
    let ends: Vec<_> = streams.into_iter().map(collect).collect();
    assert_eq!(ends.iter().filter(|end| failed(end)).count(), 1, "{ends:?}");
    assert_eq!(ends[3].0, alone(&prompt(20, 3), 0, 5, &[]).0);
}

#[test]
fn vectors_come_between_the_steps_of_others() {
    let slow = Speed { step: Duration::from_millis(2), ..Speed::default() };
    let mut sim = Sim::new(roomy(), 7);
    (sim.really, sim.speed) = (true, slow);
    let runner = Lost { sim, way: None };
    let service = Service::new(Box::new(runner), ServiceOptions::default()).unwrap();
    let mut text = service.submit(request(prompt(20, 1), 10_000)).unwrap();
    assert!(matches!(text.next(), Some(Output::Tokens { .. })));
    let vectors = service.embed(vec![vec![1; 3], vec![2; 5]]).unwrap();
    assert_eq!(vectors.wait().unwrap(), [[3.0], [5.0]]);
    assert!(!text.is_over());
    assert!(matches!(service.embed(vec![]), Err(Refusal::Empty)));
    assert!(matches!(service.embed(vec![vec![]]), Err(Refusal::Empty)));
    let long = vec![1; roomy().context + 1];
    assert!(matches!(service.embed(vec![long]), Err(Refusal::TooLong { .. })));
    drop(service.embed(vec![vec![1; 3]]).unwrap());
    wait_until("nothing is queued", || service.stats().queued() == 0);
    drop(text);
    assert!(service.drain(Duration::from_secs(5)));
    assert!(matches!(service.embed(vec![vec![1]]), Err(Refusal::Draining)));
    // A device that is lost, and a runner without vectors.
    let runner = Lost { sim: Sim::new(roomy(), 7), way: Some(Way::Finish) };
    let service = Service::new(Box::new(runner), ServiceOptions::default()).unwrap();
    let failed = service.embed(vec![vec![1]]).unwrap().wait();
    assert!(matches!(failed, Err(Failure::Device(error)) if error.is_device_lost()));
    let service = Service::new(Box::new(Sim::new(roomy(), 7)), ServiceOptions::default()).unwrap();
    let failed = service.embed(vec![vec![1]]).unwrap().wait();
    assert!(matches!(failed, Err(Failure::Device(error)) if matches!(*error, Error::NoVectors)));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn asynchronous_code_is_woken() {
    let slow = Speed { step: Duration::from_millis(3), ..Speed::default() };
    let service = service(roomy(), |sim| (sim.really, sim.speed) = (true, slow));
    let mut stream = service.submit(request(prompt(20, 1), 40)).unwrap();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut count = 0;
    let mut pending = 0;
    loop {
        let mut next = pin!(poll_fn(|context| stream.poll_next(context)));
        match next.as_mut().poll(&mut context) {
            Poll::Pending => {
                pending += 1;
                std::thread::park();
            }
            Poll::Ready(Some(Output::Tokens { tokens, .. })) => count += tokens.len(),
            Poll::Ready(Some(Output::End { .. })) => {}
            Poll::Ready(None) => break,
        }
    }
    assert_eq!(count, 40);
    assert!(pending > 0);
    assert!(stream.next_within(Duration::ZERO).is_none() && stream.try_next().is_none());
}

/// One character for each token.
fn tokenizer() -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..64_u8).map(|id| char::from(b'!' + id).to_string()).collect();
    tokens.push("!\"".to_owned());
    let vocab = Vocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(|token| token.as_bytes()).collect(),
        scores: None,
        token_types: None,
        merges: vec![b"! \""],
        bos: None,
        eos: None,
        unk: None,
        eot: None,
        cls: None,
        sep: None,
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        remove_extra_whitespaces: None,
        chat_template: None,
    };
    Arc::new(Tokenizer::new(&vocab).unwrap())
}

#[test]
fn text_ends_at_a_stop_string_and_cancels_the_rest() {
    let limits = roomy();
    let service = service(limits, |_| ());
    let prompt = prompt(20, 1);
    let (tokens, _) = alone(&prompt, 0, 200, &[]);
    let whole: String = tokens.iter().map(|&token| char::from(b'!' + token as u8)).collect();
    let stop = whole[50..53].to_owned();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let read = |stops: &[String], budget| {
        let stream = service.submit(request(prompt.clone(), budget)).unwrap();
        let (mut text, mut count) = (String::new(), 0);
        for output in TextStream::new(stream, 1, tokenizer(), stops, limits.context) {
            match output {
                TextOutput::Piece { piece, tokens, .. } => {
                    text.push_str(&piece.text);
                    count += tokens.len();
                }
                TextOutput::End { end, usage, .. } => return (text, end.unwrap(), usage, count),
            }
        }
        panic!("no end");
    };
    let (text, end, usage, _) = read(std::slice::from_ref(&stop), 10_000);
    assert_eq!((text.as_str(), end), (expected, End::StopString(stop.clone())));
    assert_eq!(usage.generated, expected.len() + 3);
    wait_until("the text is cancelled", || service.stats().numbers().cancelled == 1);
    let (text, end, usage, count) = read(&["no such thing".to_owned()], 200);
    assert_eq!((text, end), (whole, End::Budget));
    assert_eq!((usage.generated, count), (200, 200));
    assert!(usage.cached > 0, "the prompt was read before");
}
