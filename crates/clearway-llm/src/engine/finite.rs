//! Logits that are no numbers, and where they began.
//!
//! Looking for them costs nothing that could be measured: logits that the host reads are looked through once, and
//! on a device the choice of a token gives [`NO_INDEX`](clearway::NO_INDEX) for them. Only then is the step computed again, one
//! dispatch after another with bytes of its own for each value, and the first value that is not finite is the beginning.

use std::fmt;

use clearway::quant::block_decoder;
use clearway::{CompileOptions, DType, MemRangeRole, TensorView};
use half::f16;

use super::{Engine, EngineError, Result, Step};
use crate::gguf::Tensor;
use crate::model::{Logits, POSITIONS, Part, TOKENS};

/// Tokens that are looked through at a time: every value of all of them is kept.
const TOGETHER: usize = 128;
/// Blocks of weights decoded at a time.
const BLOCKS: usize = 256;

/// Where numbers that are not finite began.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The op that computed the first of them, such as `blk.3.ffn_down`.
    pub op: String,
    /// The first of them.
    pub value: f32,
    /// The tensor of the file that it comes from; `None` where everything the op read was finite.
    pub tensor: Option<BadTensor>,
}

/// A tensor of a file that holds a number that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct BadTensor {
    /// Its name.
    pub name: String,
    /// Index of the first such number.
    pub element: usize,
    /// The number.
    pub value: f32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, value, tensor } = self;
        write!(f, "{value} begins in `{op}`, ")?;
        match tensor {
            Some(BadTensor { name, element, value }) => {
                write!(
                    f,
                    "which reads `{name}`: element {element} of it is {value}, so the model file is damaged"
                )
            }
            None => {
                write!(f, "though all it reads is finite: the result is too large for its type")?;
                let is_cache = op.contains(".cache_");
                if is_cache { f.write_str("; a KV cache of f32 may help") } else { Ok(()) }
            }
        }
    }
}

/// What is known about a beginning, in words.
pub(super) fn words(origin: Option<&Origin>) -> String {
    match origin {
        Some(origin) => origin.to_string(),
        None => "no op gives such numbers when the step is computed without fusion".into(),
    }
}

/// Whether a token can be chosen from logits: no NaN, no infinity, and something above negative infinity, which
/// some models give for tokens that must not come.
pub(super) fn is_sound(logits: &[f32]) -> bool {
    // As integers, magnitudes have the same order, with infinity and NaN above all.
    let largest = logits.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
    let below = |x: &f32| *x < f32::INFINITY;
    largest < f32::INFINITY.to_bits()
        || (logits.iter().all(below) && logits.iter().any(|x| x.is_finite()))
}

impl Engine {
    /// The error for tokens whose logits are not sound, read from where the cache ends now.
    pub(super) fn not_finite(&mut self, tokens: &[u32]) -> EngineError {
        let position = self.position + tokens.len();
        // Token by token first: that takes little memory, and a damaged file shows at once.
        let found = self.find_origin(tokens, 1).and_then(|origin| match origin {
            None if tokens.len() > 1 => self.find_origin(tokens, TOGETHER),
            origin => Ok(origin),
        });
        // A failure of the search is no better answer than an unknown beginning.
        EngineError::NotFinite { position, origin: found.ok().flatten() }
    }

    fn find_origin(&self, tokens: &[u32], together: usize) -> Result<Option<Origin>> {
        let mut first = self.position as u32;
        let mut kept = Vec::new();
        for part in tokens.chunks(together) {
            let positions: Vec<u32> = (first..).take(part.len()).collect();
            let mut input: Vec<u8> = bytemuck::cast_slice(part).to_vec();
            kept.retain(|step: &Step| step.size() == part.len());
            // Where two devices have the model, what the first gives is what the second begins with.
            let engines = self.front.as_deref().into_iter().chain([self]);
            for (index, engine) in engines.enumerate() {
                if index == kept.len() {
                    let options = CompileOptions::naive();
                    kept.push(engine.compile_with(part.len(), Logits::Last, &options)?);
                }
                let step = &mut kept[index];
                step.input.write_slice(0, &input)?;
                step.positions.write_slice(0, &positions)?;
                step.graph.run()?;
                let given = step.graph.read_f32(step.recorded.logits)?;
                let sound = match engine.part {
                    Part::Front { .. } => given.iter().all(|value| value.is_finite()),
                    Part::Whole | Part::Back { .. } => is_sound(&given),
                };
                if !sound {
                    return engine.first_of(step, &positions);
                }
                input = bytemuck::cast_slice(&given).to_vec();
            }
            first += part.len() as u32;
        }
        Ok(None)
    }

    /// The first result of a step that is not finite.
    fn first_of(&self, step: &Step, positions: &[u32]) -> Result<Option<Origin>> {
        for dispatch in step.recorded.graph().dispatches() {
            let written = dispatch.accesses().iter().filter(|a| a.range.role == MemRangeRole::Dst);
            for access in written {
                let Some(view) = dispatch.bindings.get(usize::from(access.binding)) else {
                    continue;
                };
                let values = self.values(step, view, positions)?;
                if let Some(value) = values.into_iter().find(|value| !value.is_finite()) {
                    let tensor = dispatch.bindings.iter().find_map(|view| {
                        let external = step.recorded.externals().get(view.buf_id)?;
                        bad_tensor(&self.file.find_tensor(&external.name)?)
                    });
                    return Ok(Some(Origin { op: dispatch.label.to_string(), value, tensor }));
                }
            }
        }
        Ok(None)
    }

    /// The numbers a dispatch has written: a value, or the rows of the cache at these positions.
    fn values(&self, step: &Step, view: &TensorView, positions: &[u32]) -> Result<Vec<f32>> {
        let layout = &view.layout;
        if let Some(value) = view.value() {
            let bytes = step.graph.arena().read::<u8>(value)?;
            let start = view.offset as usize;
            let end = (start + layout.span_bytes() as usize).min(bytes.len());
            return Ok(floats(layout.dtype(), bytes.get(start..end).unwrap_or_default()));
        }
        let name = step.recorded.externals().get(view.buf_id).map_or("", |e| &*e.name);
        let Some(buffer) = self.buffers.get(name).filter(|_| ![TOKENS, POSITIONS].contains(&name))
        else {
            return Ok(Vec::new());
        };
        let row = layout.span_bytes() / self.context.max(1) as u64;
        let mut all = Vec::new();
        for &position in positions {
            let bytes: Vec<u8> = buffer.read_vec(u64::from(position) * row, row as usize)?;
            all.extend(floats(layout.dtype(), &bytes));
        }
        Ok(all)
    }
}

/// The first number of a tensor that is not finite.
fn bad_tensor(tensor: &Tensor<'_>) -> Option<BadTensor> {
    let decode = block_decoder(tensor.dtype())?;
    let (elems, size) = (tensor.dtype().block_elems(), tensor.dtype().block_bytes());
    let mut values = vec![0.0; BLOCKS * elems];
    for (index, blocks) in tensor.bytes().chunks(BLOCKS * size).enumerate() {
        let values = &mut values[..blocks.len() / size * elems];
        decode(blocks, values);
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let element = index * BLOCKS * elems + at;
            return Some(BadTensor { name: tensor.name().to_owned(), element, value: values[at] });
        }
    }
    None
}

/// Floats of either size; nothing for other types.
fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        DType::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_sound_if_a_token_can_be_chosen() {
        let (nan, high, low) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for (logits, sound) in [
            (&[1.0, -3.0, 0.0][..], true),
            (&[f32::MAX, f32::MIN, -0.0], true),
            (&[low, -3.0, low], true),
            (&[low, low], false),
            (&[1.0, nan], false),
            (&[1.0, -nan], false),
            (&[low, nan], false),
            (&[1.0, high, 2.0], false),
        ] {
            assert_eq!(is_sound(logits), sound, "{logits:?}");
        }
    }
}
