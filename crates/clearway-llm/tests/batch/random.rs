//! Random requests with too little of everything: nobody waits for ever, no block is lost, every text is what it is alone.

use std::collections::BTreeSet;

use clearway_graph::testkit::{Rng, Run};
use clearway_llm::Sampling;
use clearway_llm::batch::request::{EndReason, Request, RequestId};
use clearway_llm::batch::runner::Limits;
use clearway_llm::engine::Penalties;

use super::drive::Drive;

fn limits(rng: &mut Rng) -> Limits {
    let block = *rng.pick(&[1, 2, 4, 16]).unwrap();
    let context = rng.within(20, 150) as usize;
    let least = context.div_ceil(block) as u64;
    // From less than one context to plenty.
    let blocks = if rng.chance(30) { least.div_ceil(2) } else { rng.within(least, least * 8) };
    Limits {
        slots: rng.within(1, 12) as usize,
        block,
        blocks: blocks as usize,
        context,
        chunk: rng.within(1, 64) as usize,
        steps: rng.within(1, 12) as usize,
        ahead: rng.within(1, 3) as usize,
        adapters: 2,
        mixed: rng.chance(70),
    }
}

fn random_request(rng: &mut Rng, limits: &Limits, prefixes: &[Vec<u32>]) -> Request {
    let most = limits.context.min(limits.block * limits.blocks) as u64;
    let mut prompt = if rng.chance(60) { rng.pick(prefixes).unwrap().clone() } else { Vec::new() };
    let more = rng.within(1, 20);
    prompt.extend((0..more).map(|_| rng.within(1, 3) as u32));
    prompt.truncate(rng.within(1, most) as usize);
    let mut sampling = Sampling {
        seed: rng.below(3),
        budget: if rng.chance(5) { usize::MAX } else { rng.below(40) as usize },
        ..Sampling::default()
    };
    if rng.chance(5) {
        sampling.log_probs = 2;
    }
    if rng.chance(5) {
        sampling.penalties = Penalties { repeat: 1.1, ..Penalties::default() };
    }
    if rng.chance(40) {
        sampling.adapter = Some(rng.below(2) as u32);
    }
    if rng.chance(20) {
        sampling.stop_tokens = vec![rng.below(64) as u32];
    }
    Request {
        n: if rng.chance(20) { rng.within(2, 5) as usize } else { 1 },
        priority: rng.below(3) as i32,
        cache_salt: rng.below(2),
        ignore_eos: rng.chance(50),
        patient: rng.chance(80),
        ..Request::new(prompt, sampling)
    }
}

/// Runs `count` random requests on a device that fails in so many percent of starts and finishes.
fn run(seed: u64, count: usize, fails: [u64; 2]) -> Drive {
    let mut rng = Rng::new(seed);
    let limits = limits(&mut rng);
    let mut drive = Drive::new(limits, rng.next());
    drive.sim.fails = fails;
    let prefixes: Vec<Vec<u32>> = (0..4)
        .map(|_| (0..rng.within(5, 100)).map(|_| rng.within(1, 50) as u32).collect())
        .collect();
    let mut left = count;
    let rush = rng.within(1, 60);
    let mut live: Vec<RequestId> = Vec::new();
    let mut cancelled: BTreeSet<(RequestId, Option<usize>)> = BTreeSet::new();
    let mut turns = 0_usize;
    while left > 0 || !drive.scheduler.is_idle() {
        while left > 0 && (rng.chance(rush) || drive.scheduler.is_idle()) {
            let request = random_request(&mut rng, &limits, &prefixes);
            live.push(drive.submit(request));
            left -= 1;
        }
        if rng.chance(5)
            && let Some(&id) = rng.pick(&live)
        {
            let choice = rng.chance(30).then_some(0);
            drive.cancel(id, choice);
            cancelled.insert((id, choice));
        }
        drive.start();
        // Cancelled while work is under way.
        if rng.chance(5)
            && let Some(&id) = rng.pick(&live)
        {
            drive.cancel(id, None);
            cancelled.insert((id, None));
        }
        let done = drive.finish();
        let stuck = !done && !drive.scheduler.is_idle() && left == 0 && drive.start().is_none();
        assert!(!stuck, "nothing is done and somebody waits: {:?}", drive.scheduler.load());
        live.retain(|id| {
            let request = &drive.requests[id];
            (0..request.n).any(|choice| drive.texts[&(*id, choice)].end.is_none())
        });
        turns += 1;
        assert!(turns < count * 2000, "it takes for ever");
    }
    drive.run();
    drive.compare();
    for ((id, choice), text) in &drive.texts {
        if let Some(EndReason::Cancelled) = text.end {
            let asked = [None, Some(*choice)].map(|choice| cancelled.contains(&(*id, choice)));
            assert!(asked.contains(&true), "nobody cancelled this");
        }
        if let Some(EndReason::Failed(failure)) = &text.end {
            assert!(fails != [0, 0], "{failure}");
        }
    }
    drive
}

/// Names the case that fails.
fn each(name: &str, divisor: u64, test: impl Fn(u64, usize)) {
    let cases = Run::from_env(name, divisor);
    let count = if cases.cases > 100 { 200 } else { 50 };
    for seed in cases.seeds() {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed, count)));
        if let Err(panic) = result {
            println!("{name}: seed {seed} of {count} requests");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_requests_get_what_they_get_alone() {
    let preempted = std::cell::Cell::new(0);
    let copied = std::cell::Cell::new(0);
    let found = std::cell::Cell::new(0);
    let mixed = std::cell::Cell::new(0);
    each("batches of requests", 20, |seed, count| {
        let drive = run(seed, count, [0, 0]);
        let counts = drive.scheduler.counts();
        preempted.set(preempted.get() + counts.preempted);
        copied.set(copied.get() + counts.copied);
        found.set(found.get() + counts.pool.found);
        assert_eq!(counts.mixed, drive.sim.mixed, "works of both kinds of rows");
        mixed.set(mixed.get() + counts.mixed);
    });
    // What is to be tested did happen.
    assert!(preempted.get() > 0 && copied.get() > 0 && found.get() > 0);
    assert!(mixed.get() > 100, "{} works had both kinds of rows", mixed.get());
}

#[test]
fn a_device_that_fails_now_and_then_loses_no_block_and_blocks_nobody() {
    each("batches on a device that fails", 100, |seed, count| {
        run(seed, count, [2, 2]);
    });
}
