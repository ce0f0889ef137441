//! A model on its devices: what is checked before anything is loaded, and what is uploaded.

use std::sync::Arc;

use clearway::{Device, GraphExecutor, Upload};
use rustc_hash::FxHashMap;

use super::adapter::Stack;
use super::convert::{self, Conversion};
use super::sizes::Kept;
use super::{
    Adapters, Devices, Engine, EngineError, EngineOptions, Footprint, KEPT, Result, embed,
    plain_model,
};
use crate::gguf::Gguf;
use crate::model::{ADAPTERS, HEADS, Logits, POSITIONS, Part, ROPE_FACTORS, SEEN, STREAM, TOKENS};

impl Engine {
    /// As [`with_progress`](Self::with_progress), on one device or on two, with adapters of the weights.
    ///
    /// # Errors
    /// As [`new`](Self::new), and an adapter of another model; [`EngineError::Layers`].
    pub fn with_adapters(
        gguf: &Gguf,
        adapters: &Adapters,
        devices: impl Into<Devices>,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let devices = devices.into();
        let stack = Stack::new(adapters, gguf)?;
        let more = stack.as_ref().map_or(0, Stack::bytes);
        let (plain, _) = &plain_model(gguf)?;
        let memory = devices.last().info().memory_bytes;
        let footprint =
            Footprint::beside(plain, more, options.context, options.cache_dtype, memory)?;
        if let Devices::One(device) = &devices {
            footprint.check(&**device)?;
        }
        let Footprint { context, .. } = footprint;
        if context == 0 || context > u32::MAX as usize {
            return Err(EngineError::Context { wanted: context });
        }
        let choices = adapters.choices();
        let (host, card, layers) = match devices {
            Devices::One(device) => {
                let whole = (Part::Whole, device);
                return Self::part(plain, whole, (stack, choices), &footprint, options, progress);
            }
            Devices::Two { host, card, host_layers } => (host, card, host_layers),
        };
        if layers >= footprint.shape.layers {
            return Err(EngineError::Layers {
                host_layers: layers,
                layers: footprint.shape.layers,
            });
        }
        let (total, mut uploaded) = (plain.tensor_bytes(), 0);
        let front = (Part::Front { layers }, host);
        let own = (Stack::new(adapters, gguf)?, choices.clone());
        let mut front = Self::part(plain, front, own, &footprint, options, &mut |bytes| {
            uploaded = bytes;
            progress(bytes);
        })?;
        let back = (Part::Back { from: layers }, card);
        let own = (stack, choices);
        let mut engine = Self::part(plain, back, own, &footprint, options, &mut |bytes| {
            // An embedding that is also the head is uploaded twice.
            progress((uploaded + bytes).min(total));
        })?;
        engine.conversions.append(&mut front.conversions);
        engine.front = Some(Box::new(front));
        Ok(engine)
    }

    /// A part of a model on a device, with all adapters, of which it takes those of its layers.
    fn part(
        gguf: &Gguf,
        (part, device): (Part, Arc<dyn Device>),
        (stack, choices): (Option<Stack>, Vec<String>),
        footprint: &Footprint,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let of_file = gguf
            .tensors()
            .map(|t| (t.name().to_owned(), convert::device_dtype(t.dtype(), &*device)));
        let of_adapters = stack.iter().flat_map(|stack| stack.dtypes(&*device));
        let weight_dtypes = of_file.chain(of_adapters).collect();
        let kept_rows = KEPT * device.batch_tokens();
        let mut engine = Self {
            executor: GraphExecutor::on(device),
            part,
            front: None,
            shape: footprint.shape.clone(),
            options,
            context: footprint.context,
            reason: footprint.reason,
            file: gguf.clone(),
            weight_dtypes,
            conversions: Vec::new(),
            adapters: stack,
            choices,
            buffers: FxHashMap::default(),
            steps: Kept::new(kept_rows),
            looped: None,
            checks: FxHashMap::default(),
            stalled: false,
            embedder: embed::Embedder::new(kept_rows),
            position: 0,
        };
        engine.upload(gguf, progress)?;
        Ok(engine)
    }

    /// Puts every tensor the graph names on the device. The names come from the graph, so that
    /// nothing is missing later and nothing that is not needed is uploaded.
    fn upload(&mut self, gguf: &Gguf, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let adapters = self.adapters.as_ref().map(Stack::layout);
        let recorded = self.record_with(1, Logits::Last, self.context, adapters)?;
        let mut uploaded = 0;
        let device = self.executor.device().clone();
        for external in recorded.externals() {
            let layout = external.view.layout;
            let name = &*external.name;
            let buffer = match name {
                TOKENS | STREAM | POSITIONS | SEEN | ADAPTERS => continue,
                HEADS => {
                    let numbers: Vec<u32> = (0..self.shape.heads as u32).collect();
                    device.upload(&numbers)?
                }
                ROPE_FACTORS => {
                    let factors = self.shape.rope_factors(self.context, |name| gguf.floats(name));
                    device.upload(&factors)?
                }
                _ if name.starts_with("cache.") => device.alloc(layout.span_bytes())?,
                _ => {
                    let stacked = self.adapters.as_mut();
                    if let Some(bytes) = stacked.and_then(|all| all.take(name, layout.dtype())) {
                        let buffer = device.upload_weights(&layout, &bytes)?;
                        self.buffers.insert(name.to_owned(), buffer);
                        continue;
                    }
                    let tensor = gguf.tensor(name)?;
                    let found: Vec<usize> = tensor.dims().iter().rev().copied().collect();
                    let expected: Vec<usize> = layout.dims().iter().map(|&d| d as usize).collect();
                    let dtype = convert::device_dtype(tensor.dtype(), &*device);
                    if found != expected || dtype != layout.dtype() {
                        return Err(EngineError::TensorShape {
                            name: name.to_owned(),
                            found: format!("{} {found:?}", tensor.dtype()),
                            expected: format!("{} {expected:?}", layout.dtype()),
                        });
                    }
                    let buffer = if dtype == tensor.dtype() {
                        device.upload_weights(&layout, tensor.bytes())?
                    } else {
                        let bytes = convert::convert(&tensor, dtype);
                        Conversion::note(&mut self.conversions, &tensor, dtype, bytes.len());
                        device.upload_weights(&layout, &bytes)?
                    };
                    gguf.release(&tensor);
                    uploaded += tensor.bytes().len() as u64;
                    progress(uploaded);
                    buffer
                }
            };
            self.buffers.insert(name.to_owned(), buffer);
        }
        Ok(())
    }
}
