//! Where a model would lie, and how fast it would be, about.

use std::sync::Arc;

use anyhow::Result;
use clearway::{Device, GraphExecutor};
use clearway_llm::engine::{EngineOptions, Share, plain_model};
use clearway_llm::gguf::Gguf;
use serde_json::{Value, json};

use super::Args;
use crate::commands::bench::micro::read_bandwidth;
use crate::memory::size;
use crate::out::say;

/// What each device would have, in the order in which they compute, and the bytes that it reads in a nanosecond when it
/// does nothing else; `None` where that could not be measured.
pub struct Placement {
    /// Whether the model writes texts.
    generates: bool,
    devices: Vec<(Share, Option<f64>)>,
}

impl Placement {
    /// Of a model on a device, with the CPU beside it.
    pub fn new(args: &Args, gguf: &Gguf, device: Arc<dyn Device>) -> Result<Self> {
        let options = EngineOptions {
            context: args.ctx_size,
            cache_dtype: args.cache.dtype(),
            ..EngineOptions::default()
        };
        let devices = args.layers.choose(gguf, &args.device, device, &options)?;
        let shares = devices.shares(gguf, &options)?;
        let read = |device: Arc<dyn Device>| read_bandwidth(&GraphExecutor::on(device)).ok();
        let read = devices.all().into_iter().map(read);
        let generates = plain_model(gguf)?.1.causal;
        Ok(Self { generates, devices: shares.into_iter().zip(read).collect() })
    }

    /// Tokens in a second while the cache is empty: the devices compute one after another, and each takes as long as the bytes
    /// that it must fetch. Faster is not possible.
    fn tokens_per_second(&self) -> Option<f64> {
        let time = |(share, read): &(Share, Option<f64>)| {
            read.filter(|&read| read > 0.0).map(|read| share.fetched as f64 / read)
        };
        let ns: f64 = self.devices.iter().map(time).sum::<Option<f64>>()?;
        (self.generates && ns > 0.0).then(|| 1e9 / ns)
    }

    pub fn print(&self) -> Result<()> {
        let last = self.devices.len() - 1;
        for (index, (share, read)) in self.devices.iter().enumerate() {
            let more = match index {
                _ if last == 0 => "all",
                0 => "and the embedding",
                _ => "and the head",
            };
            let read = match read {
                Some(read) => format!("reads {read:.1} GB/s"),
                None => "its bandwidth could not be measured".to_owned(),
            };
            let layers = share.layers.len();
            let (bytes, fetched) = (size(share.total()), size(share.fetched));
            say!(
                "  {:<8} {bytes:>10} in {layers} layers {more}, {fetched} for each token, {read}",
                share.device
            )?;
        }
        match self.tokens_per_second() {
            Some(rate) => {
                say!("  {:<8} {rate:>10.1} tokens per second at most, by these bytes", "speed")
            }
            None if !self.generates => Ok(()),
            None => say!("  {:<8} {:>10}", "speed", "not known"),
        }
    }

    pub fn object(&self) -> Value {
        let devices = self.devices.iter().map(|(share, read)| {
            json!({
                "device": share.device,
                "first_layer": share.layers.start,
                "layers": share.layers.len(),
                "weight_bytes": share.weights,
                "cache_bytes": share.cache,
                "bytes_per_token": share.fetched,
                "read_gb_s": read,
            })
        });
        json!({
            "devices": devices.collect::<Vec<_>>(),
            "tokens_per_second": self.tokens_per_second(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_token_is_that_of_both_devices() {
        let share = |fetched: u64| Share {
            device: "cpu".into(),
            layers: 0..2,
            weights: 10,
            cache: 10,
            fetched,
        };
        let of = |devices: Vec<(Share, Option<f64>)>| {
            Placement { generates: true, devices }.tokens_per_second()
        };
        // 10 ms and 2 ms.
        let both = of(vec![(share(100_000_000), Some(10.0)), (share(800_000_000), Some(400.0))]);
        assert!((both.unwrap() - 1000.0 / 12.0).abs() < 1e-9);
        assert_eq!(of(vec![(share(100), Some(10.0)), (share(100), None)]), None);
        assert_eq!(of(vec![(share(100), Some(0.0))]), None);
    }
}
