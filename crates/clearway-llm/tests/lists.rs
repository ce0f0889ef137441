//! No stream waits for a list to be made: on a device whose compiler never comes to an end, texts are written by the lists that are there.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use clearway::cpu::CpuDevice;
use clearway::{
    Buffer, Device, DeviceInfo, Encoder, FusedRequest, GpuError, KernelRegistry, Layout,
};
use clearway_graph::testkit::Rng;
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::request::{EndReason, Request};
use clearway_llm::batch::schedule::Decided;
use clearway_llm::batch::service::{Numbers, Output, Service, ServiceOptions, Stream};
use clearway_llm::engine::{Engine, EngineOptions, Sampling};
use clearway_llm::gguf::Gguf;

mod tiny;
use tiny::{file, shapes};

const VOCAB: u64 = 96;
/// Lists that stand in for all others, made before the first text.
const FIRST: u64 = 2;

/// A CPU whose compiler is in the way of everybody but the thread that opened it.
struct Gated {
    cpu: CpuDevice,
    opener: ThreadId,
    gate: Gate,
    /// Others get no memory.
    full: bool,
    free: u64,
}

/// What others wait for.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

impl Gated {
    fn new(full: bool, free: u64) -> Arc<Self> {
        let (cpu, opener) = (CpuDevice::with_threads(2), std::thread::current().id());
        Arc::new(Self { cpu, opener, gate: Gate::default(), full, free })
    }

    fn is_opener(&self) -> bool {
        std::thread::current().id() == self.opener
    }
}

impl Device for Gated {
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }

    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, GpuError> {
        match self.full && !self.is_opener() {
            true => {
                let device = "cpu".into();
                Err(GpuError::OutOfMemory { device, wanted: bytes, available: 0 })
            }
            false => self.cpu.alloc(bytes),
        }
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer, GpuError> {
        self.cpu.upload_weights(layout, bytes)
    }

    fn quantises_activations(&self) -> bool {
        self.cpu.quantises_activations()
    }

    fn rows_are_independent(&self) -> bool {
        // As GPUs say, for which lists are made ahead of need.
        false
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer, GpuError> {
        self.cpu.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        self.cpu.has_fused(request)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        if !self.is_opener() {
            self.gate.pass();
        }
        self.cpu.encoder(kernels)
    }
}

fn runner(device: Arc<dyn Device>, deterministic: bool) -> DeviceRunner {
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let options = EngineOptions { context: Some(2048), ..EngineOptions::default() };
    let engine = Engine::new(&gguf, device, options).unwrap();
    let options = DeviceOptions { slots: 5, block: 4, context: 400, deterministic };
    DeviceRunner::new(engine, options).unwrap()
}

fn service(runner: DeviceRunner) -> Service {
    Service::new(Box::new(runner), ServiceOptions::default()).unwrap()
}

/// Texts of many lengths. The first is long, and the others come while it is written.
fn requests() -> Vec<Request> {
    let mut rng = Rng::new(5);
    let text = |(index, tokens): (usize, u64)| {
        let prompt: Vec<u32> = (0..tokens).map(|_| rng.below(VOCAB) as u32).collect();
        let seed = index as u64;
        let budget = if index == 0 { 200 } else { 6 };
        let sampling = match index % 3 {
            0 => Sampling { budget, ..Sampling::greedy() },
            1 => Sampling { budget, seed, ..Sampling::default() },
            // More candidates than usual.
            _ => Sampling { budget, seed, top_k: 100, ..Sampling::default() },
        };
        Request::new(prompt, sampling)
    };
    let lengths = [3, 150, 9, 40, 77, 2, 21, 300, 66, 5, 130, 12];
    lengths.into_iter().enumerate().map(text).collect()
}

/// The next piece of a stream, which must come before long.
fn next(stream: &mut Stream) -> Option<Output> {
    let output = stream.next_within(Duration::from_secs(60));
    assert!(output.is_some() || stream.is_over(), "a stream stands still");
    output
}

fn rest(mut stream: Stream, mut tokens: Vec<u32>) -> Vec<u32> {
    while let Some(output) = next(&mut stream) {
        match output {
            Output::Tokens { tokens: new, .. } => tokens.extend(new.iter().map(|one| one.token)),
            Output::End { reason, .. } => {
                assert!(matches!(reason, EndReason::Budget), "{reason:?}");
            }
        }
    }
    tokens
}

/// All texts at once, the first some tokens ahead of the others.
fn together(service: &Service, requests: &[Request]) -> Vec<Vec<u32>> {
    let mut first = service.submit(requests[0].clone()).unwrap();
    let Some(Output::Tokens { tokens, .. }) = next(&mut first) else { panic!("no token") };
    let begun = tokens.iter().map(|one| one.token).collect();
    let others = service.submit_all(requests[1..].to_vec()).unwrap();
    let others: Vec<_> = others.into_iter().map(|stream| rest(stream, Vec::new())).collect();
    std::iter::once(rest(first, begun)).chain(others).collect()
}

fn alone(requests: &[Request]) -> Vec<Vec<u32>> {
    let service = service(runner(Arc::new(CpuDevice::with_threads(2)), false));
    let text = |request: &Request| rest(service.submit(request.clone()).unwrap(), Vec::new());
    let texts = requests.iter().map(text).collect();
    let numbers = service.stats().numbers();
    assert!(numbers.lists_late > 0 && numbers.list_waits == numbers.lists_late, "{numbers:?}");
    texts
}

fn wait_until(service: &Service, what: &str, holds: impl Fn(&Numbers) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds(&service.stats().numbers()) {
        assert!(Instant::now() < until, "{what}: {:?}", service.stats().numbers());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn texts_are_written_and_are_the_same_while_no_list_comes() {
    let requests = requests();
    let alone = alone(&requests);
    for deterministic in [false, true] {
        let device = Gated::new(false, 0);
        let mut runner = runner(device.clone(), deterministic);
        runner.make_ahead().unwrap();
        let service = service(runner);
        assert_eq!(together(&service, &requests), alone, "pinned: {deterministic}");
        let closed = service.stats().numbers();
        assert_eq!((closed.list_waits, closed.lists_late), (0, 0), "{closed:?}");
        assert_eq!((closed.lists_ahead, closed.mixed_works), (FIRST, 0), "{closed:?}");
        let apart =
            |decided: &Decided| matches!(decided, Decided::Apart { rows: 1.., beside: 1.. });
        let logged = service.decisions().iter().filter(|one| apart(&one.what)).count() as u64;
        assert_eq!(logged, closed.apart_works);
        assert_eq!(closed.apart_works > 0, !deterministic, "{closed:?}");

        // Once they come they are taken, and the texts stay the same.
        device.gate.open();
        for _ in 0..3 {
            assert_eq!(together(&service, &requests), alone, "pinned: {deterministic}");
        }
        if !deterministic {
            wait_until(&service, "late lists come", |numbers| {
                rest(service.submit(requests[5].clone()).unwrap(), Vec::new());
                numbers.lists_late > 0
            });
            wait_until(&service, "works become one list", |numbers| {
                assert_eq!(together(&service, &requests), alone);
                numbers.mixed_works > 0
            });
        }
        let open = service.stats().numbers();
        assert_eq!((open.list_waits, open.lists_failed), (0, 0), "{open:?}");
    }
}

#[test]
fn lists_without_memory_are_done_without() {
    let requests = requests();
    let device = Gated::new(true, 0);
    device.gate.open();
    let mut runner = runner(device, false);
    runner.make_ahead().unwrap();
    let service = service(runner);
    let alone = alone(&requests);
    for _ in 0..2 {
        assert_eq!(together(&service, &requests), alone);
    }
    wait_until(&service, "lists fail", |numbers| {
        rest(service.submit(requests[5].clone()).unwrap(), Vec::new());
        numbers.lists_failed > 10
    });
    let numbers = service.stats().numbers();
    assert_eq!((numbers.lists_ahead, numbers.lists_late, numbers.list_waits), (FIRST, 0, 0));
}

#[test]
fn nothing_is_made_ahead_on_a_device_that_is_all_but_full() {
    let device = Gated::new(false, 1);
    device.gate.open();
    let mut runner = runner(device, false);
    runner.make_ahead().unwrap();
    let service = service(runner);
    let requests = requests();
    // What works ask for is made all the same.
    wait_until(&service, "late lists come", |numbers| {
        rest(service.submit(requests[5].clone()).unwrap(), Vec::new());
        numbers.lists_late > 1
    });
    assert_eq!(service.stats().numbers().lists_ahead, FIRST);
}
