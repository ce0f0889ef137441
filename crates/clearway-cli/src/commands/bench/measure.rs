//! What `clearway bench` measures, and how: prompts and generated tokens of one engine.

use std::time::{Duration, Instant};

use anyhow::Result;
use clearway::{Device, HostTimes, HostWork};
use clearway_llm::Sampling;
use clearway_llm::engine::{Engine, TokenBytes};

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Test {
    Prompt(usize),
    Generate(usize),
}

/// What was measured.
pub struct Measured {
    pub test: Test,
    /// Tokens per second of each run.
    pub samples: Vec<f64>,
    /// Of generated tokens.
    pub decode: Option<Decode>,
}

/// What a generated token is made of and what it cost.
#[derive(Clone, Copy)]
pub struct Decode {
    /// Groups of dispatches that wait for each other.
    pub phases: u32,
    pub barriers: u32,
    /// Bytes fetched, by the average of cached rows.
    pub bytes: TokenBytes,
    /// What the device reads in a nanosecond when it does nothing else; `None` if it cannot say.
    pub read_bytes_per_ns: Option<f64>,
    /// Time on the processor for one token; `None` where the system does not say.
    pub cpu_us: Option<Cpu<f64>>,
    /// What the host did for the device in all timed runs; `None` where it is not counted.
    pub work: Option<HostWork>,
    /// Microseconds of a token for encoding and submission; `None` where they are not measured.
    pub host_us: Option<[f64; 2]>,
}

impl Test {
    pub const fn tokens(self) -> usize {
        match self {
            Self::Prompt(tokens) | Self::Generate(tokens) => tokens,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Prompt(tokens) => format!("pp{tokens}"),
            Self::Generate(tokens) => format!("tg{tokens}"),
        }
    }
}

/// Time on the processor: of all threads of the process, those of drivers included, and of the one
/// that measures, which hands work to a GPU and waits for it.
#[derive(Clone, Copy)]
pub struct Cpu<T> {
    pub all: T,
    pub own: T,
}

/// How long a device beside the host is kept busy before anything is measured: its clocks go up with work.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Everything a measurement needs.
pub struct Bench<'a> {
    pub engine: &'a mut Engine,
    pub device: &'a dyn Device,
    /// What the device reads in a nanosecond when it does nothing else, where that is known.
    pub bandwidth: Option<f64>,
    /// Tokens in the cache before each run.
    pub depth: usize,
    /// How generated tokens are chosen.
    pub temperature: f32,
    pub repetitions: u32,
}

/// What one run, or all of them, took.
#[derive(Clone, Copy, Default)]
struct Cost {
    time: Duration,
    cpu: Option<Cpu<Duration>>,
    work: Option<HostWork>,
    host: Option<HostTimes>,
}

impl Bench<'_> {
    pub fn measure(&mut self, test: Test) -> Result<Measured> {
        self.warm_up(test)?;
        let runs = (0..self.repetitions).map(|_| self.once(test));
        let runs = runs.collect::<Result<Vec<Cost>>>()?;
        let rate = |run: &Cost| test.tokens() as f64 / run.time.as_secs_f64();
        let decode = match test {
            Test::Prompt(_) => None,
            Test::Generate(count) => self.decode(count, &runs)?,
        };
        Ok(Measured { test, samples: runs.iter().map(rate).collect(), decode })
    }

    /// Runs without being measured until kernels are compiled and clocks are up.
    fn warm_up(&mut self, test: Test) -> Result<()> {
        self.once(test)?;
        let started = Instant::now();
        while started.elapsed() < WARM_UP && self.device.host_is_far() {
            self.once(test)?;
        }
        Ok(())
    }

    /// One run. What the tokens are does not matter, but they are not all one: experts and rows of the
    /// embedding would be more in the caches than in real text.
    fn once(&mut self, test: Test) -> Result<Cost> {
        let engine = &mut *self.engine;
        let vocab = engine.shape().vocab as u64;
        let token = |i: usize| (i as u64).wrapping_mul(2_654_435_761) % vocab;
        let tokens: Vec<u32> = (1..=test.tokens()).map(|i| token(i) as u32).collect();
        engine.clear();
        if self.depth > 0 {
            let text: Vec<u32> = (1..=self.depth).map(|i| token(i) as u32).collect();
            engine.eval(&text)?;
        }
        let (work, host) = (self.device.host_work(), self.device.host_times());
        let (cpu, started) = (cpu_time(), Instant::now());
        match test {
            Test::Generate(count) if engine.feeds_back() => {
                let temperature = self.temperature;
                let sampling = Sampling { temperature, min_p: 0.0, ..Sampling::default() };
                engine.generate(tokens[0], count, &sampling, &mut |_| true)?;
            }
            Test::Prompt(_) => {
                engine.eval(&tokens)?;
            }
            Test::Generate(_) => {
                for token in tokens {
                    engine.eval(&[token])?;
                }
            }
        }
        let time = started.elapsed();
        let cpu = cpu.zip(cpu_time()).map(|(before, after)| Cpu {
            all: after.all.saturating_sub(before.all),
            own: after.own.saturating_sub(before.own),
        });
        let work = work.zip(self.device.host_work()).map(|(before, after)| HostWork {
            encodings: after.encodings - before.encodings,
            allocations: after.allocations - before.allocations,
        });
        let host = host.zip(self.device.host_times()).map(|(before, after)| HostTimes {
            encoding: after.encoding.saturating_sub(before.encoding),
            submission: after.submission.saturating_sub(before.submission),
        });
        Ok(Cost { time, cpu, work, host })
    }

    /// What each of `count` generated tokens is made of and took in these runs.
    fn decode(&self, count: usize, runs: &[Cost]) -> Result<Option<Decode>> {
        let Some(stats) = self.engine.decode_stats() else { return Ok(None) };
        // The first token sees itself and what was there before, the last one all.
        let rows = self.depth + count.div_ceil(2);
        let tokens = (runs.len() * count) as f64;
        let us = |times: Duration| times.as_secs_f64() * 1e6 / tokens;
        let all = runs.iter().map(|run| run.cpu.map(|cpu| cpu.all)).sum::<Option<Duration>>();
        let own = runs.iter().map(|run| run.cpu.map(|cpu| cpu.own)).sum::<Option<Duration>>();
        let cpu_us = all.zip(own).map(|(all, own)| Cpu { all: us(all), own: us(own) });
        let work = runs.iter().map(|run| run.work).try_fold(HostWork::default(), |sum, run| {
            let run = run?;
            let encodings = sum.encodings + run.encodings;
            Some(HostWork { encodings, allocations: sum.allocations + run.allocations })
        });
        let host = |of: fn(HostTimes) -> Duration| {
            runs.iter().map(|run| run.host.map(of)).sum::<Option<Duration>>().map(us)
        };
        let host_us = host(|h| h.encoding).zip(host(|h| h.submission)).map(|(e, s)| [e, s]);
        Ok(Some(Decode {
            phases: stats.compile.groups,
            barriers: stats.compile.barriers,
            bytes: self.engine.token_bytes(rows)?,
            read_bytes_per_ns: self.bandwidth,
            cpu_us,
            work,
            host_us,
        }))
    }
}

/// Time this process and this thread have had on all cores.
pub fn cpu_time() -> Option<Cpu<Duration>> {
    #[cfg(unix)]
    {
        use rustix::time::{ClockId, clock_gettime};
        let all = clock_gettime(ClockId::ProcessCPUTime).try_into().ok()?;
        let own = clock_gettime(ClockId::ThreadCPUTime).try_into().ok()?;
        Some(Cpu { all, own })
    }
    #[cfg(not(unix))]
    None
}

impl Measured {
    pub fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    /// Of the sample, as llama-bench has it; 0 for one run.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let degrees = self.samples.len().saturating_sub(1).max(1);
        (squares / degrees as f64).sqrt()
    }

    /// Share of the device's bandwidth that the bytes of these tokens make.
    pub fn bandwidth_share(&self) -> Option<f64> {
        let decode = self.decode?;
        let bytes_per_ns = decode.bytes.total() as f64 * self.mean() / 1e9;
        decode.read_bytes_per_ns.filter(|&read| read > 0.0).map(|read| bytes_per_ns / read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let measured = |samples: &[f64]| Measured {
            test: Test::Prompt(1),
            samples: samples.into(),
            decode: None,
        };
        let spread = measured(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(spread.mean(), 2.5);
        assert!((spread.deviation() - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(measured(&[7.0]).deviation(), 0.0);
    }

    #[test]
    fn the_share_is_that_of_the_bytes_in_a_second() {
        let decode = Decode {
            phases: 3,
            barriers: 3,
            bytes: TokenBytes { weights: 900_000, cache: 100_000 },
            read_bytes_per_ns: Some(4.0),
            cpu_us: None,
            work: None,
            host_us: None,
        };
        let measured = |decode| Measured {
            test: Test::Generate(2),
            samples: vec![1_000.0, 3_000.0],
            decode: Some(decode),
        };
        // 2,000 tokens of a megabyte are 2 GB a second.
        assert!((measured(decode).bandwidth_share().unwrap() - 0.5).abs() < 1e-12);
        for unknown in [None, Some(0.0)] {
            let decode = Decode { read_bytes_per_ns: unknown, ..decode };
            assert_eq!(measured(decode).bandwidth_share(), None);
        }
    }

    #[cfg(unix)]
    #[test]
    fn time_on_the_processor_grows_with_work() {
        let (before, started) = (cpu_time().unwrap(), Instant::now());
        let mut spent = (Duration::ZERO, Duration::ZERO);
        // A busy machine takes its time to give what is asked for.
        while spent.0.min(spent.1) < Duration::from_millis(1) {
            assert!(started.elapsed() < Duration::from_secs(20), "{spent:?}");
            let after = cpu_time().unwrap();
            spent = (after.all - before.all, after.own - before.own);
        }
    }
}
