//! Which layers lie on which of two devices, where a model is larger than a card.
//!
//! The card has the last layers and the head, the other device the embedding and the first layers. So one copy goes from
//! one to the other in a step, the residual stream of its tokens; logits come from the card as they do from any device. The
//! head is a matrix that every token reads whole, often the largest of all: it belongs where bandwidth is. Of the embedding
//! a token reads one row.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use clearway::{DType, Device};

use super::adapter::Stack;
use super::{
    Adapters, Engine, EngineError, EngineOptions, Footprint, Result, convert, plain_model, traffic,
};
use crate::gguf::Gguf;
use crate::model::{self, ModelGraph, ModelShape, Part, RecordOptions};

/// One part in so many of a card's memory stays free, for what drivers need and what lies between buffers.
const SPARE: u64 = 32;

/// How many layers lie on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit.
    #[default]
    Auto,
    /// So many, counted from the last; all where the model has no more.
    Count(usize),
}

impl FromStr for GpuLayers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => text.parse().map(Self::Count).map_err(|_| "it is auto or a number of layers"),
        }
    }
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(layers) => write!(f, "{layers}"),
        }
    }
}

/// Where a model lies.
#[derive(Clone)]
pub enum Devices {
    /// All of it on one device.
    One(Arc<dyn Device>),
    /// On two.
    Two {
        /// What has the embedding and the first layers.
        host: Arc<dyn Device>,
        /// What has the other layers and the head.
        card: Arc<dyn Device>,
        /// How many layers the first has; fewer than there are.
        host_layers: usize,
    },
}

/// What one device has of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// Layers it has.
    pub layers: Range<usize>,
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of the KV cache.
    pub cache: u64,
    /// Bytes that a token must fetch where it is the first of a text.
    pub fetched: u64,
}

impl Share {
    /// Weights and cache.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache)
    }
}

impl<D: Device + 'static> From<Arc<D>> for Devices {
    fn from(device: Arc<D>) -> Self {
        Self::One(device)
    }
}

impl From<Arc<dyn Device>> for Devices {
    fn from(device: Arc<dyn Device>) -> Self {
        Self::One(device)
    }
}

impl Devices {
    /// Chooses where a model lies: on the card if it fits, else as many of its last layers and the head; on the other device,
    /// which is only opened where it is needed, if not even one layer and the head fit. A number of layers is taken as it is.
    ///
    /// # Errors
    /// A model that is not supported; [`EngineError::TooLarge`], [`EngineError::TooLargeTogether`],
    /// [`EngineError::LayersTooLarge`].
    pub fn choose(
        gguf: &Gguf,
        adapters: &Adapters,
        options: &EngineOptions,
        wanted: GpuLayers,
        card: Arc<dyn Device>,
        host: impl FnOnce() -> Arc<dyn Device>,
    ) -> Result<Self> {
        let more = Stack::new(adapters, gguf)?.as_ref().map_or(0, Stack::bytes);
        let (gguf, _) = &plain_model(gguf)?;
        let info = card.info();
        let (dtype, memory) = (options.cache_dtype, info.memory_bytes);
        let footprint = Footprint::beside(gguf, more, options.context, dtype, memory)?;
        let sizes = Sizes::new(gguf, &footprint, &*card)?.with_adapters(more);
        let free = card.free_bytes().min(memory);
        if memory == 0 && wanted != GpuLayers::Count(0) || sizes.fits_whole(wanted, free) {
            return Ok(Self::One(card));
        }
        let host = host();
        let lies = sizes.divide(wanted, free, host.info().memory_bytes);
        match lies {
            Ok(Lies::Card) => Ok(Self::One(card)),
            Ok(Lies::Host) => {
                footprint.check(&*host)?;
                Ok(Self::One(host))
            }
            Ok(Lies::Both { host_layers }) => Ok(Self::Two { host, card, host_layers }),
            Err(Misfit::Layers { needed, fit }) => Err(EngineError::LayersTooLarge {
                device: info.name.clone(),
                needed,
                memory: free,
                fit,
            }),
            Err(Misfit::Together) => Err(EngineError::TooLargeTogether {
                devices: [info.name.clone(), host.info().name.clone()],
                weights: footprint.weights,
                cache: footprint.cache,
                context: footprint.context,
                memory: [free, host.info().memory_bytes],
            }),
        }
    }

    /// The device that logits come from.
    pub fn last(&self) -> &Arc<dyn Device> {
        match self {
            Self::One(device) => device,
            Self::Two { card, .. } => card,
        }
    }

    /// The devices in the order in which they compute, each with its part of a model.
    fn parts(&self) -> Vec<(&Arc<dyn Device>, Part)> {
        match self {
            Self::One(device) => vec![(device, Part::Whole)],
            Self::Two { host, card, host_layers } => vec![
                (host, Part::Front { layers: *host_layers }),
                (card, Part::Back { from: *host_layers }),
            ],
        }
    }

    /// The devices in the order in which they compute.
    pub fn all(&self) -> Vec<Arc<dyn Device>> {
        self.parts().into_iter().map(|(device, _)| device.clone()).collect()
    }

    /// What each device will have of a model, in the order in which they compute.
    ///
    /// # Errors
    /// A model that is not supported.
    pub fn shares(&self, gguf: &Gguf, options: &EngineOptions) -> Result<Vec<Share>> {
        let (gguf, _) = &plain_model(gguf)?;
        let memory = self.last().info().memory_bytes;
        let footprint = Footprint::new(gguf, options.context, options.cache_dtype, memory)?;
        let share = |(device, part): (&Arc<dyn Device>, Part)| -> Result<Share> {
            let recorded = record_part(gguf, &footprint, part, &**device)?;
            let fetched = traffic::count(&recorded, 1, 1);
            let sizes = sizes_of(gguf, &footprint, recorded);
            let bytes = |cache| sizes.iter().filter(|s| s.cache == cache).map(|s| s.bytes).sum();
            Ok(Share {
                device: device.info().name.clone(),
                layers: layers_of(part, &footprint.shape),
                weights: bytes(false),
                cache: bytes(true),
                fetched: fetched.total(),
            })
        };
        self.parts().into_iter().map(share).collect()
    }
}

impl Engine {
    /// What each device has of the model, in the order in which they compute.
    ///
    /// # Errors
    /// What recording reports.
    pub fn shares(&self) -> Result<Vec<Share>> {
        let mut shares = match &self.front {
            Some(front) => front.shares()?,
            None => Vec::new(),
        };
        let bytes = |cache: bool| {
            let own = self.buffers.iter().filter(|(name, _)| name.starts_with("cache.") == cache);
            // What is made of a model's shape is in no file.
            let own = own.filter(|(name, _)| cache || self.file.find_tensor(name).is_some());
            own.map(|(_, buffer)| buffer.len()).sum()
        };
        shares.push(Share {
            device: self.executor.device().info().name.clone(),
            layers: layers_of(self.part, &self.shape),
            weights: bytes(false),
            cache: bytes(true),
            fetched: self.own_token_bytes(1)?.total(),
        });
        Ok(shares)
    }

    /// An error if two devices have the model.
    pub(crate) fn check_undivided(&self, what: &'static str) -> Result<()> {
        let Some(front) = &self.front else { return Ok(()) };
        let name = |engine: &Self| engine.executor.device().info().name.clone();
        Err(EngineError::Divided { what, devices: [name(self), name(front)] })
    }
}

fn layers_of(part: Part, shape: &ModelShape) -> Range<usize> {
    match part {
        Part::Whole => 0..shape.layers,
        Part::Front { layers } => 0..layers,
        Part::Back { from } => from..shape.layers,
    }
}

/// Bytes of one tensor.
struct Size {
    bytes: u64,
    /// Whether it is one of the cache.
    cache: bool,
    /// The layer it belongs to, if any.
    layer: Option<usize>,
}

/// A step of one token of a part of a model, as a device would have it, over a cache of one row.
fn record_part(
    gguf: &Gguf,
    footprint: &Footprint,
    part: Part,
    device: &dyn Device,
) -> Result<ModelGraph> {
    let dtype = |name: &str| {
        let tensor = gguf.find_tensor(name);
        tensor.map_or(DType::F32, |tensor| convert::device_dtype(tensor.dtype(), device))
    };
    let options = RecordOptions {
        weight_dtype: &dtype,
        cache_dtype: footprint.cache_dtype,
        part,
        ..RecordOptions::new(1, 1)
    };
    Ok(model::record(&footprint.shape, &options)?)
}

/// Bytes of all tensors of such a step with the cache that a model gets.
fn sizes_of(gguf: &Gguf, footprint: &Footprint, recorded: ModelGraph) -> Vec<Size> {
    let externals = recorded.into_externals();
    let sizes = externals.iter().filter_map(|external| {
        let (name, bytes) = (&*external.name, external.view.layout.span_bytes());
        match name.strip_prefix("cache.") {
            Some(rest) => {
                let layer = rest.rsplit('.').next().and_then(|layer| layer.parse().ok());
                let bytes = bytes.saturating_mul(footprint.context as u64);
                Some(Size { bytes, cache: true, layer })
            }
            None if gguf.find_tensor(name).is_none() => None,
            None => {
                let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
                let layer = layer.and_then(|layer| layer.parse().ok());
                Some(Size { bytes, cache: false, layer })
            }
        }
    });
    sizes.collect()
}

/// What parts of a model need, in bytes.
#[derive(Clone, Debug)]
struct Sizes {
    /// All of it, on one device.
    whole: u64,
    /// The embedding and what goes with it.
    front: u64,
    /// Each layer with its rows of the cache.
    layers: Vec<u64>,
    /// The last norm and the head.
    back: u64,
    /// Values of compiled steps.
    values: u64,
}

/// Where a model lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Card,
    Host,
    Both { host_layers: usize },
}

/// Why a model lies nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Misfit {
    /// The layers that were asked for need so much, and so many would fit.
    Layers { needed: u64, fit: usize },
    /// Both devices have too little.
    Together,
}

impl Sizes {
    fn new(gguf: &Gguf, footprint: &Footprint, card: &dyn Device) -> Result<Self> {
        let shape = &footprint.shape;
        let sizes = |part: Part| -> Result<Vec<Size>> {
            Ok(sizes_of(gguf, footprint, record_part(gguf, footprint, part, card)?))
        };
        let sum = |sizes: &[Size]| sizes.iter().fold(0, |sum: u64, s| sum.saturating_add(s.bytes));
        let all = sizes(Part::Whole)?;
        let mut layers = vec![0_u64; shape.layers];
        for size in &all {
            if let Some(layer) = size.layer.and_then(|layer| layers.get_mut(layer)) {
                *layer = layer.saturating_add(size.bytes);
            }
        }
        Ok(Self {
            whole: sum(&all),
            front: sum(&sizes(Part::Front { layers: 0 })?),
            layers,
            back: sum(&sizes(Part::Back { from: shape.layers })?),
            values: values(shape, card.batch_tokens() as u64),
        })
    }

    /// The same with adapters of so many bytes, all of which are counted where the head is.
    fn with_adapters(self, bytes: u64) -> Self {
        let more = |size: u64| size.saturating_add(bytes);
        Self { whole: more(self.whole), back: more(self.back), ..self }
    }

    /// What must stay free on a card of so many bytes beside weights and cache.
    fn reserve(&self, card: u64) -> u64 {
        self.values.saturating_add(card / SPARE)
    }

    /// Whether no other device need be asked.
    fn fits_whole(&self, wanted: GpuLayers, card: u64) -> bool {
        match wanted {
            GpuLayers::Auto => self.whole.saturating_add(self.reserve(card)) <= card,
            GpuLayers::Count(count) => count >= self.layers.len() && self.whole <= card,
        }
    }

    /// What the head and so many of the last layers need.
    fn on_card(&self, count: usize) -> u64 {
        let last = self.layers.iter().rev().take(count);
        last.fold(self.back, |sum, &layer| sum.saturating_add(layer))
    }

    /// What the embedding and so many of the first layers need.
    fn on_host(&self, count: usize) -> u64 {
        let first = self.layers.iter().take(count);
        first.fold(self.front, |sum, &layer| sum.saturating_add(layer))
    }

    /// Where a model lies on a card and another device of so many bytes; 0 stands for a number that is not known.
    fn divide(&self, wanted: GpuLayers, card: u64, host: u64) -> Result<Lies, Misfit> {
        if self.fits_whole(wanted, card) {
            return Ok(Lies::Card);
        }
        let all = self.layers.len();
        let fits = |count: usize, beside: u64| {
            card == 0 || self.on_card(count).saturating_add(beside) <= card
        };
        let most = |beside: u64| (1..=all).rev().find(|&count| fits(count, beside)).unwrap_or(0);
        let count = match wanted {
            GpuLayers::Auto => most(self.reserve(card)),
            // What was asked for is tried, even where hardly anything stays free.
            GpuLayers::Count(count) if count == 0 || fits(count.min(all), 0) => count.min(all),
            GpuLayers::Count(count) => {
                let needed = self.on_card(count.min(all));
                return Err(Misfit::Layers { needed, fit: most(self.reserve(card)) });
            }
        };
        let (needed, lies) = match count {
            0 => (self.whole, Lies::Host),
            count => (self.on_host(all - count), Lies::Both { host_layers: all - count }),
        };
        match host == 0 || needed <= host {
            true => Ok(lies),
            // Nothing is left but to try.
            false if wanted == GpuLayers::Auto && self.whole <= card => Ok(Lies::Card),
            false => Err(Misfit::Together),
        }
    }
}

/// About as many bytes as the values of compiled steps take on a device that reads so many tokens at once. Steps of several
/// sizes are kept, each with values of its own: together they have about twice those of the largest.
fn values(shape: &ModelShape, tokens: u64) -> u64 {
    let inner = match shape.experts {
        None => shape.ff,
        Some(experts) => experts.used * experts.ff + experts.shared_ff.unwrap_or(0),
    };
    let attention = (shape.heads + shape.kv_heads) * shape.head_dim;
    // The stream, what joins it and its norm; gate, up and their product, or what goes into attention and comes out of it.
    let token = 3 * shape.embd + (3 * inner).max(2 * attention);
    let floats = (2 * tokens).saturating_mul(token as u64).saturating_add(shape.vocab as u64);
    floats.saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four layers of 100 bytes, an embedding of 40 and a head of 60, which need 8 bytes for values.
    fn sizes() -> Sizes {
        Sizes { whole: 500, front: 40, layers: vec![100; 4], back: 60, values: 8 }
    }

    #[test]
    fn as_many_layers_lie_on_the_card_as_fit_with_room_to_spare() {
        use GpuLayers::Auto;
        let sizes = sizes();
        for (card, lies) in [
            // 508 and a part in 32 of the card.
            (524, Lies::Card),
            (523, Lies::Both { host_layers: 0 }),
            // 60 + 4 x 100 + 8 + 15
            (483, Lies::Both { host_layers: 0 }),
            (482, Lies::Both { host_layers: 1 }),
            (379, Lies::Both { host_layers: 1 }),
            (378, Lies::Both { host_layers: 2 }),
            (173, Lies::Both { host_layers: 3 }),
            (172, Lies::Host),
            (1, Lies::Host),
        ] {
            assert_eq!(sizes.divide(Auto, card, 0), Ok(lies), "a card of {card}");
        }
    }

    #[test]
    fn a_number_of_layers_is_taken_as_it_is() {
        let sizes = sizes();
        let divide = |count, card, host| sizes.divide(GpuLayers::Count(count), card, host);
        assert_eq!(divide(0, 10_000, 0), Ok(Lies::Host));
        assert_eq!(divide(2, 10_000, 0), Ok(Lies::Both { host_layers: 2 }));
        assert_eq!(divide(2, 260, 0), Ok(Lies::Both { host_layers: 2 }), "nothing to spare");
        assert_eq!(divide(2, 259, 0), Err(Misfit::Layers { needed: 260, fit: 1 }));
        assert_eq!(divide(2, 100, 0), Err(Misfit::Layers { needed: 260, fit: 0 }));
        for all in [4, 99] {
            assert_eq!(divide(all, 500, 0), Ok(Lies::Card));
            assert_eq!(divide(all, 499, 0), Ok(Lies::Both { host_layers: 0 }));
            assert_eq!(divide(all, 459, 0), Err(Misfit::Layers { needed: 460, fit: 3 }));
        }
    }

    #[test]
    fn what_the_card_does_not_hold_must_fit_the_other_device() {
        use GpuLayers::{Auto, Count};
        let sizes = sizes();
        assert_eq!(sizes.divide(Auto, 400, 140), Ok(Lies::Both { host_layers: 1 }));
        assert_eq!(sizes.divide(Auto, 400, 139), Err(Misfit::Together));
        assert_eq!(sizes.divide(Auto, 10, 500), Ok(Lies::Host));
        assert_eq!(sizes.divide(Auto, 10, 499), Err(Misfit::Together));
        assert_eq!(sizes.divide(Count(0), 10_000, 499), Err(Misfit::Together));
        // A card that is nearly full is better than nothing.
        assert_eq!(sizes.divide(Auto, 505, 10), Ok(Lies::Card));
        // A cache that fits neither.
        let cache = Sizes { whole: 1 << 40, layers: vec![1 << 38; 4], ..sizes };
        assert_eq!(cache.divide(Auto, 1 << 30, 1 << 30), Err(Misfit::Together));
    }

    #[test]
    fn numbers_of_layers_are_read_as_they_are_written() {
        for text in ["auto", "0", "14"] {
            assert_eq!(text.parse::<GpuLayers>().unwrap().to_string(), text);
        }
        for odd in ["", "all", "-1", "1.5", "Auto"] {
            assert!(odd.parse::<GpuLayers>().is_err(), "{odd}");
        }
    }
}
