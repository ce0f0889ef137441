//! Tensors of types that a device has no kernels for.
//!
//! They are converted when they are loaded: to the smallest type that holds every value exactly, where
//! the device has kernels for one, else to f16. The engine keeps a note of it for the user.

use std::fmt;

use clearway::quant::block_decoder;
use clearway::quant::blocks::{BlockIq4Nl, BlockQ4_0, BlockQ5_0, BlockQ8_0, IQ4_LEVELS};
use clearway::{DType, Device};
use half::f16;

use crate::gguf::Tensor;

/// Tensors of one type that were converted to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Type in the file.
    pub from: DType,
    /// Type on the device.
    pub to: DType,
    /// Whether every value is the same.
    pub exact: bool,
    /// How many tensors.
    pub tensors: usize,
    /// Their bytes in the file.
    pub file_bytes: u64,
    /// Their bytes on the device.
    pub device_bytes: u64,
}

impl Conversion {
    pub(super) fn note(all: &mut Vec<Self>, tensor: &Tensor<'_>, to: DType, bytes: usize) {
        let from = tensor.dtype();
        let index = all.iter().position(|c| (c.from, c.to) == (from, to)).unwrap_or_else(|| {
            let exact = exact_type(from) == Some(to);
            all.push(Self { from, to, exact, tensors: 0, file_bytes: 0, device_bytes: 0 });
            all.len() - 1
        });
        let note = &mut all[index];
        note.tensors += 1;
        note.file_bytes += tensor.bytes().len() as u64;
        note.device_bytes += bytes as u64;
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, exact, tensors, file_bytes, device_bytes } = self;
        let how = if *exact { "exactly" } else { "rounded" };
        write!(
            f,
            "{tensors} tensors of {from} are held as {to}, {how}, since the device has no kernels \
             for {from}: {device_bytes} bytes instead of {file_bytes}"
        )
    }
}

/// The smallest type that holds every value of a type, if it is not much larger: in an f32, which holds
/// them all, block weights would be four to twelve times their size.
const fn exact_type(dtype: DType) -> Option<DType> {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::IQ4_NL => Some(DType::Q8_0),
        DType::F16 | DType::BF16 => Some(DType::F32),
        _ => None,
    }
}

/// The type that a tensor has on a device.
pub(super) fn device_dtype(dtype: DType, device: &dyn Device) -> DType {
    if dtype == DType::F32 || device.supports_weights(dtype) {
        return dtype;
    }
    exact_type(dtype).filter(|&to| device.supports_weights(to)).unwrap_or(DType::F16)
}

/// The bytes of a tensor in another type, which [`device_dtype`] gave.
pub(super) fn convert(tensor: &Tensor<'_>, to: DType) -> Vec<u8> {
    let bytes = tensor.bytes();
    if to == DType::Q8_0 {
        return match tensor.dtype() {
            DType::Q4_0 => to_q8_0(bytes, |b: &BlockQ4_0| (b.d, nibbles(&b.qs, |q| q as i8 - 8))),
            DType::IQ4_NL => to_q8_0(bytes, |b: &BlockIq4Nl| {
                (b.d, nibbles(&b.qs, |q| IQ4_LEVELS[usize::from(q)]))
            }),
            _ => to_q8_0(bytes, |b: &BlockQ5_0| {
                let high = u32::from_le_bytes(b.qh);
                let mut quants = nibbles(&b.qs, |q| q as i8);
                for (i, quant) in quants.iter_mut().enumerate() {
                    *quant += ((high >> i & 1) << 4) as i8 - 16;
                }
                (b.d, quants)
            }),
        };
    }
    let mut out = Vec::with_capacity(tensor.elements() * to.block_bytes());
    let Some(decode) = block_decoder(tensor.dtype()) else { return out };
    let (elems, size) = (tensor.dtype().block_elems(), tensor.dtype().block_bytes());
    let mut values = vec![0.0; CHUNK_BLOCKS * elems];
    for blocks in bytes.chunks(CHUNK_BLOCKS * size) {
        let values = &mut values[..blocks.len() / size * elems];
        decode(blocks, values);
        match to {
            DType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
            // What f16 cannot hold becomes its largest number, not infinity.
            _ => out.extend(values.iter().flat_map(|v| {
                let limit = f16::MAX.to_f32();
                f16::from_f32(v.clamp(-limit, limit)).to_le_bytes()
            })),
        }
    }
    out
}

/// Blocks decoded at a time.
const CHUNK_BLOCKS: usize = 64;

fn to_q8_0<B: bytemuck::Pod>(bytes: &[u8], block: impl Fn(&B) -> ([u8; 2], [i8; 32])) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / size_of::<B>() * size_of::<BlockQ8_0>());
    // Blocks have alignment 1 and chunks their exact size: the cast cannot fail.
    for source in bytes.chunks_exact(size_of::<B>()) {
        let (d, qs) = block(bytemuck::from_bytes(source));
        out.extend_from_slice(bytemuck::bytes_of(&BlockQ8_0 { d, qs }));
    }
    out
}

/// 32 quants, low nibbles first.
fn nibbles(qs: &[u8; 16], value: impl Fn(u8) -> i8) -> [i8; 32] {
    std::array::from_fn(|i| value(if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 }))
}
