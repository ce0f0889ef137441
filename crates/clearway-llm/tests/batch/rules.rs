//! What the scheduler promises, one test each.

use std::time::Duration;

use clearway_llm::Sampling;
use clearway_llm::batch::request::{EndReason, Refusal, Request};
use clearway_llm::batch::runner::{Change, Limits, Work};
use clearway_llm::batch::schedule::{Decided, Policy, Scheduler};

use super::drive::{Drive, prompt, request, roomy};
use super::sim::{END, Speed};

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Times between tokens of texts, from one moment to another.
fn gaps<'a>(
    times: impl Iterator<Item = &'a Vec<Duration>>,
    from: Duration,
    to: Duration,
) -> Vec<Duration> {
    let inside = |pair: &[Duration]| (pair[1] > from && pair[1] <= to).then(|| pair[1] - pair[0]);
    times.flat_map(|times| times.windows(2).filter_map(inside).collect::<Vec<_>>()).collect()
}

#[test]
fn a_request_that_can_never_run_is_refused() {
    let limits = Limits { context: 100, blocks: 5, block: 16, ..roomy() };
    let mut scheduler = Scheduler::new(limits, Policy::default(), vec![]);
    let mut refusal = |request: Request| scheduler.submit(&request, ms(0)).unwrap_err();
    assert_eq!(refusal(request(vec![], 5)), Refusal::Empty);
    assert_eq!(refusal(request(prompt(101, 0), 5)), Refusal::TooLong { tokens: 101, context: 100 });
    assert_eq!(refusal(request(prompt(81, 0), 5)), Refusal::TooLarge { needed: 6, blocks: 5 });
    let sampling = Sampling { adapter: Some(3), ..Sampling::default() };
    assert_eq!(
        refusal(Request::new(vec![1], sampling)),
        Refusal::Adapter { adapter: 3, loaded: 0 }
    );
    scheduler.submit(&request(prompt(80, 0), 5), ms(0)).unwrap();
}

#[test]
fn texts_end_with_budget_context_and_stop_tokens() {
    let mut drive = Drive::new(Limits { context: 64, ..roomy() }, 1);
    let budget = drive.submit(request(prompt(20, 1), 7));
    let context = drive.submit(request(prompt(60, 2), 100));
    let nothing = drive.submit(request(prompt(20, 3), 0));
    let stop = drive.submit(Request { ignore_eos: false, ..request(prompt(3, 4), 1000) });
    drive.run();
    drive.compare();
    assert_eq!(drive.text(budget).tokens.len(), 7);
    assert!(matches!(drive.text(context).end, Some(EndReason::Context)));
    assert_eq!(drive.text(context).tokens.len(), 5, "the last place gives a token too");
    assert!(matches!(drive.text(nothing).end, Some(EndReason::Budget)));
    assert!(matches!(drive.text(stop).end, Some(EndReason::Token(END) | EndReason::Context)));
}

#[test]
fn several_steps_and_works_only_while_nobody_waits() {
    let mut drive = Drive::new(roomy(), 2);
    drive.sim.speed.jitter = 0;
    drive.submit(request(prompt(20, 1), 2000));
    (0..8).for_each(|_| assert!(drive.turn()));
    drive.finish();
    let work = drive.start().unwrap();
    assert_eq!(work.steps, 32, "60 ms for one that runs alone");
    assert_eq!(drive.scheduler.under_way(), 2);
    drive.submit(request(prompt(2000, 2), 2000));
    drive.finish();
    drive.finish();
    let work = drive.start().unwrap();
    assert_eq!((work.steps, work.decode.len()), (1, 1), "the newcomer joins at the next work");
    assert!(!work.read.is_empty());
    while drive.scheduler.load().reading > 0 {
        drive.turn();
    }
    (0..8).for_each(|_| assert!(drive.turn()));
    while drive.finish() {}
    let work = drive.start().unwrap();
    assert!((5..=10).contains(&work.steps), "10 ms where several run: {}", work.steps);
    assert_eq!(work.decode.len(), 2);
}

#[test]
fn where_nobody_reads_tokens_as_they_come_chunks_are_full_and_works_long() {
    let patient = |prompt| Request { patient: true, ..request(prompt, 2000) };
    // What the next work reads of a prompt that arrives, how many decode beside it, and its steps once that is read.
    let next = |others: [Request; 2], newcomer: Request| {
        let mut drive = Drive::new(roomy(), 2);
        drive.sim.speed.jitter = 0;
        for request in others {
            drive.submit(request);
        }
        (0..20).for_each(|_| assert!(drive.turn()));
        drive.submit(newcomer);
        while drive.finish() {}
        let work = drive.start().unwrap();
        let beside = work.decode.len();
        let read: usize = work.read.iter().map(|read| read.tokens.len()).sum();
        while drive.scheduler.load().reading > 0 {
            drive.turn();
        }
        (0..8).for_each(|_| assert!(drive.turn()));
        while drive.finish() {}
        (read, beside, drive.start().unwrap().steps)
    };
    let [one, other, long] = [(20, 1), (20, 2), (2000, 3)].map(|(n, salt)| prompt(n, salt));
    let (read, beside, steps) =
        next([patient(one.clone()), patient(other.clone())], patient(long.clone()));
    assert_eq!((read, beside), (512, 0), "all that the device takes at once, and nothing else");
    assert!((25..=32).contains(&steps), "60 ms: {steps}");
    // One of them who reads tokens is enough.
    let (read, beside, steps) = next([patient(one), request(other, 2000)], patient(long));
    assert!(read < 256 && beside == 2, "{read} tokens, {beside} texts beside them");
    assert!((5..=10).contains(&steps), "10 ms: {steps}");
}

#[test]
fn texts_that_nobody_reads_as_they_come_take_no_more_steps_than_the_longest() {
    let steps = |patient: bool| {
        let mut drive = Drive::new(roomy(), 2);
        for salt in 0..8 {
            drive.submit(Request { patient, ..request(prompt(200, salt), 40) });
        }
        drive.run();
        drive.compare();
        drive.scheduler.counts().steps
    };
    // Prompts of 1,600 tokens are read in several chunks.
    assert_eq!(steps(true), 40);
    assert!(steps(false) > 40);
}

#[test]
fn texts_that_nobody_reads_as_they_come_share_little_memory() {
    let limits = Limits { blocks: 20, block: 16, context: 300, ..roomy() };
    let mut drive = Drive::new(limits, 2);
    for salt in 0..12 {
        drive.submit(Request { patient: true, ..request(prompt(100, salt), 150) });
    }
    drive.run();
    drive.compare();
}

#[test]
fn a_prompt_that_arrives_stalls_nobody() {
    arrives(roomy());
}

#[test]
fn a_prompt_that_is_read_beside_steps_stalls_nobody() {
    arrives(Limits { mixed: true, ..roomy() });
}

fn arrives(limits: Limits) {
    let mut drive = Drive::new(limits, 3);
    drive.check = false;
    for salt in 0..15 {
        drive.submit(request(prompt(100, salt), 4000));
    }
    // Before it steps are single, as they are for users who stream.
    drive.scheduler = {
        let policy = Policy { patience: ms(1), ..Policy::default() };
        let mut scheduler = Scheduler::new(limits, policy, vec![END]);
        drive.requests.values().for_each(|request| {
            scheduler.submit(request, ms(0)).unwrap();
        });
        scheduler
    };
    (0..400).for_each(|_| assert!(drive.turn()));
    let arrived = drive.now;
    let before = median(gaps(drive.texts.values().map(|t| &t.times), ms(100), arrived));
    let long = drive.submit(request(prompt(8000, 99), 10));
    while drive.text(long).tokens.is_empty() {
        assert!(drive.turn());
    }
    let took = drive.now - arrived;
    assert!(took < Duration::from_secs(3), "its first token comes after {took:?}");
    let others = drive.texts.iter().filter(|((id, _), _)| *id != long).map(|(_, t)| &t.times);
    let mut during = gaps(others, arrived, drive.now);
    during.sort_unstable();
    let p99 = during[during.len() * 99 / 100];
    let worst = *during.last().unwrap();
    println!("median before {before:?}, p99 {p99:?}, worst {worst:?}, first token {took:?}");
    assert!(p99 <= before * 3, "p99 {p99:?} of {before:?}");
    assert!(worst <= before * 5 && worst <= ms(50), "{worst:?}");
}

/// So many requests in flight, 128 tokens each way, a new one for each that ends: tokens per second against those of all prompts at
/// once and then all steps, and how many works had both.
fn closed_loop(mixed: bool, in_flight: usize) -> (f64, u64) {
    let limits = Limits { slots: in_flight, mixed, ..roomy() };
    let mut drive = Drive::new(limits, 21);
    drive.check = false;
    // Weights that take as long to read as 120 rows take to multiply.
    let [step, row, token] = [12_000, 10, 100].map(Duration::from_micros);
    drive.sim.speed = Speed { step, row, chunk: step, token, jitter: 5 };
    let mut next = 0;
    let mut submit = |drive: &mut Drive| {
        next += 1;
        let first = Vec::from([next / 60 % 60 + 1, next % 60 + 1]);
        let text = first.into_iter().chain(prompt(126, next)).collect();
        drive.submit(request(text, 128));
    };
    (0..in_flight).for_each(|_| submit(&mut drive));
    let count = 8 * in_flight;
    while drive.texts.values().filter(|text| text.end.is_some()).count() < count {
        let done = drive.texts.values().filter(|text| text.end.is_some()).count();
        while drive.texts.len() < done + in_flight {
            submit(&mut drive);
        }
        assert!(drive.turn());
    }
    let tokens: usize = drive.texts.values().map(|text| text.tokens.len()).sum();
    let n = in_flight as u32;
    let best = f64::from(n * 128) / (token * 128 * n + (step + row * n) * 128).as_secs_f64();
    (tokens as f64 / drive.now.as_secs_f64() / best, drive.scheduler.counts().mixed)
}

#[test]
fn a_closed_loop_gains_where_weights_are_read_once() {
    for in_flight in [8, 32, 64] {
        let (apart, none) = closed_loop(false, in_flight);
        let (both, mixed) = closed_loop(true, in_flight);
        println!("{in_flight} in flight: {apart:.2} and {both:.2}, {mixed} works had both");
        assert_eq!(none, 0);
        assert!(mixed > 20, "{mixed}");
        assert!(both > 0.9 && both > 1.02 * apart, "{both:.2} and {apart:.2}");
    }
}

#[test]
fn short_prompts_overtake_a_long_one_which_still_goes_on() {
    let mut drive = Drive::new(Limits { slots: 4, ..roomy() }, 4);
    let long = drive.submit(request(prompt(8000, 1), 5));
    drive.start();
    let mut shorts = Vec::new();
    let mut next = 2;
    // A short prompt arrives whenever there is a slot, until the long one has its first token.
    while drive.text(long).tokens.is_empty() {
        if drive.scheduler.load().waiting == 0 && drive.scheduler.load().reading < 3 {
            let at = drive.now;
            shorts.push((drive.submit(request(prompt(64, next), 1)), at));
            next += 1;
        }
        assert!(drive.turn());
    }
    let long_took = drive.text(long).times[0];
    drive.run();
    let took = |&(id, at): &(_, Duration)| drive.text(id).times[0] - at;
    let slowest = shorts.iter().map(took).max().unwrap();
    let mut alone = Drive::new(roomy(), 4);
    let id = alone.submit(request(prompt(8000, 1), 5));
    alone.run();
    let alone = alone.text(id).times[0];
    println!(
        "{} short prompts, slowest {slowest:?}; long {long_took:?}, alone {alone:?}",
        shorts.len()
    );
    assert!(shorts.len() > 5);
    assert!(slowest < long_took / 4, "a short prompt waited {slowest:?} of {long_took:?}");
    assert!(long_took < alone * 3, "the long prompt took {long_took:?}, alone {alone:?}");
}

#[test]
fn equal_prompts_are_read_in_the_order_in_which_they_came() {
    let mut drive = Drive::new(roomy(), 5);
    let ids: Vec<_> = (0..4).map(|salt| drive.submit(request(prompt(2000, salt), 1))).collect();
    drive.run();
    let times: Vec<Duration> = ids.iter().map(|&id| drive.text(id).times[0]).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[0] < times[3] / 2, "{times:?}");
}

#[test]
fn priorities_go_first_and_age_counts() {
    let mut drive = Drive::new(Limits { slots: 1, ..roomy() }, 6);
    let first = drive.submit(request(prompt(20, 0), 50));
    drive.start();
    let low = drive.submit(Request { priority: -1, ..request(prompt(20, 1), 50) });
    let middle = drive.submit(request(prompt(20, 2), 50));
    let high = drive.submit(Request { priority: 5, ..request(prompt(20, 3), 50) });
    let late = drive.submit(Request { priority: 5, ..request(prompt(20, 4), 50) });
    drive.run();
    let start = |id| drive.text(id).times[0];
    let times = [first, high, late, middle, low].map(start);
    assert!(times.is_sorted(), "{times:?}");

    // One that has waited for long goes before one of a higher priority.
    let mut drive = Drive::new(Limits { slots: 1, ..roomy() }, 6);
    drive.submit(request(prompt(20, 0), 50));
    drive.start();
    let low = drive.submit(request(prompt(20, 1), 5));
    drive.now += Duration::from_secs(60);
    let high = drive.submit(Request { priority: 5, ..request(prompt(20, 2), 5) });
    drive.run();
    assert!(drive.text(low).times[0] < drive.text(high).times[0]);
}

#[test]
fn without_memory_the_youngest_yields_and_is_read_again() {
    // Four texts of 60 tokens at most need 16 blocks in the end; there are ten.
    let limits = Limits { slots: 4, block: 16, blocks: 10, context: 64, ..roomy() };
    let mut drive = Drive::new(limits, 7);
    let ids: Vec<_> = (0..4).map(|salt| drive.submit(request(prompt(20, salt), 40))).collect();
    drive.run();
    drive.compare();
    let counts = drive.scheduler.counts();
    assert!(counts.preempted > 0);
    let ends: Vec<Duration> = ids.iter().map(|&id| *drive.text(id).times.last().unwrap()).collect();
    assert!(ends.is_sorted(), "the oldest are done first: {ends:?}");
    let victims = drive.scheduler.decisions().filter_map(|decision| match decision.what {
        Decided::Preempted { sequence, by, .. } => Some((sequence, by.unwrap())),
        _ => None,
    });
    for (victim, by) in victims {
        assert!(victim > by, "{victim} yielded to {by}");
    }
    // The usage does not count tokens that were read again.
    assert!(ids.iter().all(|&id| drive.text(id).usage.cached == 0));

    let mut drive = Drive::new(limits, 7);
    let low = drive.submit(Request { priority: -1, ..request(prompt(20, 9), 40) });
    let high: Vec<_> = (0..3).map(|salt| drive.submit(request(prompt(20, salt), 40))).collect();
    drive.run();
    let end = |id| *drive.text(id).times.last().unwrap();
    assert!(high.iter().all(|&id| end(id) < end(low)), "the lowest priority yields");
}

#[test]
fn a_prompt_is_cancelled_while_it_is_read() {
    let mut drive = Drive::new(roomy(), 8);
    let long = drive.submit(request(prompt(8000, 1), 5));
    let other = drive.submit(request(prompt(30, 2), 5));
    drive.start();
    // The first step beside which it could be read is measured.
    (0..2).for_each(|_| {
        drive.finish();
        drive.start();
    });
    let read = drive.sim.read;
    assert!(read < 4000);
    drive.cancel(long, None);
    let in_use = drive.scheduler.load().blocks_in_use;
    assert!(in_use > 20, "work under way still writes them: {in_use}");
    drive.run();
    assert!(matches!(drive.text(long).end, Some(EndReason::Cancelled)));
    assert!(drive.sim.read <= read + 30, "nobody reads it on");
    assert_eq!(drive.text(other).tokens.len(), 5);
    drive.compare();
    // What was read is found again.
    let again = drive.submit(request(prompt(8000, 1), 5));
    drive.run();
    assert!(drive.text(again).usage.cached >= 480, "{:?}", drive.text(again).usage);
    drive.compare();
}

#[test]
fn a_text_is_cancelled_in_the_queue_and_while_it_decodes() {
    let mut drive = Drive::new(Limits { slots: 1, ..roomy() }, 9);
    let running = drive.submit(request(prompt(30, 1), 1000));
    let waiting = drive.submit(request(prompt(30, 2), 1000));
    (0..5).for_each(|_| assert!(drive.turn()));
    drive.cancel(waiting, None);
    assert_eq!(drive.scheduler.load().waiting, 0);
    drive.start();
    drive.cancel(running, None);
    drive.run();
    for id in [running, waiting] {
        assert!(matches!(drive.text(id).end, Some(EndReason::Cancelled)));
    }
    drive.compare();
    let next = drive.submit(request(prompt(30, 3), 10));
    drive.run();
    assert_eq!(drive.text(next).tokens.len(), 10);
    drive.compare();
}

#[test]
fn sequences_that_share_a_prompt_read_it_once() {
    let limits = Limits { slots: 128, blocks: 2048, ..roomy() };
    let mut drive = Drive::new(limits, 10);
    drive.check = false;
    let shared = prompt(2000, 1);
    for salt in 0..128 {
        let mut own = shared.clone();
        own.extend(prompt(3 + salt % 5, salt as u32));
        drive.submit(request(own, 10));
    }
    drive.run();
    drive.compare();
    // 125 blocks are shared; each reads at most a block of its own.
    assert!(drive.sim.read <= 2000 + 128 * 16, "{} tokens were read", drive.sim.read);
    let cached = drive.texts.values().filter(|text| text.usage.cached == 2000).count();
    assert_eq!(cached, 127);
}

#[test]
fn salts_keep_prompts_apart() {
    let mut drive = Drive::new(roomy(), 11);
    for salt in 0..3 {
        drive.submit(Request { cache_salt: salt, ..request(prompt(320, 1), 3) });
        drive.run();
    }
    assert_eq!(drive.sim.read, 3 * 319);
    drive.compare();
}

#[test]
fn adapters_keep_prompts_apart() {
    let mut drive = Drive::new(Limits { adapters: 2, ..roomy() }, 11);
    for adapter in [None, Some(0), Some(1), None, Some(1)] {
        let sampling = Sampling { adapter, budget: 3, ..Sampling::default() };
        drive.submit(Request::new(prompt(320, 1), sampling));
        drive.run();
    }
    // The last two read only the block that they decode in.
    assert_eq!(drive.sim.read, 3 * 319 + 2 * 15);
    drive.compare();
    let sampling = Sampling { adapter: Some(2), ..Sampling::default() };
    let refused = drive.scheduler.submit(&Request::new(vec![1], sampling), ms(0));
    assert_eq!(refused, Err(Refusal::Adapter { adapter: 2, loaded: 2 }));
}

#[test]
fn a_conversation_reads_only_its_new_turn() {
    let mut drive = Drive::new(roomy(), 12);
    let first = drive.submit(request(prompt(300, 1), 100));
    drive.run();
    let mut text = prompt(300, 1);
    text.extend(&drive.text(first).tokens);
    text.extend(prompt(20, 2));
    let read = drive.sim.read;
    let second = drive.submit(request(text, 5));
    drive.run();
    drive.compare();
    // 399 tokens were in the cache, 24 full blocks.
    assert_eq!(drive.text(second).usage.cached, 384);
    assert_eq!(drive.sim.read - read, 419 - 384);
}

#[test]
fn several_texts_of_one_prompt_read_it_once_and_copy_its_last_block() {
    let mut drive = Drive::new(roomy(), 13);
    let id = drive.submit(Request { n: 6, ..request(prompt(500, 1), 20) });
    drive.run();
    drive.compare();
    assert_eq!(drive.sim.read, 499);
    assert_eq!(drive.scheduler.counts().copied, 5);
    let texts: Vec<&Vec<u32>> = (0..6).map(|choice| &drive.texts[&(id, choice)].tokens).collect();
    assert!((1..6).all(|choice| texts[choice] != texts[0]), "seeds differ");
}

#[test]
fn rows_that_need_the_host_decode_one_step_at_a_time() {
    let mut drive = Drive::new(roomy(), 14);
    let sampling = Sampling { log_probs: 3, budget: 30, ..Sampling::default() };
    drive.submit(Request { ignore_eos: true, ..Request::new(prompt(20, 1), sampling) });
    drive.submit(request(prompt(20, 2), 100));
    // The simulated device refuses more than one step and more than one work.
    drive.run();
    drive.compare();
    assert!(drive.sim.steps >= 30);
}

#[test]
fn a_row_without_numbers_fails_alone() {
    let mut drive = Drive::new(roomy(), 15);
    let bad = drive.submit(request(vec![1, 2, 63], 20));
    let good = drive.submit(request(vec![1, 2, 3], 1));
    drive.sim.poison = Some(63);
    drive.run();
    assert!(matches!(drive.text(bad).end, Some(EndReason::Failed(_))));
    assert_eq!(drive.text(good).tokens.len(), 1);
    drive.compare();
}

#[test]
fn blocks_are_given_when_steps_need_them() {
    let mut drive = Drive::new(Limits { steps: 1, ahead: 1, ..roomy() }, 16);
    drive.submit(request(prompt(17, 1), 60));
    let blocks = |work: &Work| {
        let count = |change: &Change| match change {
            Change::Blocks { blocks, .. } => blocks.len(),
            _ => 0,
        };
        work.changes.iter().map(count).sum::<usize>()
    };
    let mut given = Vec::new();
    while let Some(work) = drive.start() {
        given.push(blocks(&work));
        drive.finish();
    }
    // 16 tokens are read, and then each 16th step needs a block.
    let places: Vec<usize> = (0..given.len()).filter(|&at| given[at] > 0).collect();
    assert_eq!(places, [0, 16, 32, 48]);
    assert_eq!(given[0], 2);
}

#[test]
fn the_first_token_of_a_short_prompt_comes_with_its_first_work() {
    let mut drive = Drive::new(roomy(), 17);
    drive.sim.speed = Speed { jitter: 0, ..Speed::default() };
    let id = drive.submit(request(prompt(100, 1), 5));
    drive.turn();
    assert_eq!(drive.text(id).tokens.len(), 1);
    assert_eq!(drive.now, Duration::from_micros(1000 + 20 + 99 * 20));
}
