//! Plain floats seen as blocks of one weight, so that every type goes through the same loops.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use super::Block;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct PlainF32([u8; 4]);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct PlainF16([u8; 2]);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct PlainBf16([u8; 2]);

impl Block<1> for PlainF32 {
    fn decode(&self, out: &mut [f32; 1]) {
        *out = [f32::from_le_bytes(self.0)];
    }

    fn encode(x: &[f32; 1]) -> Option<Self> {
        Some(Self(x[0].to_le_bytes()))
    }
}

impl Block<1> for PlainF16 {
    fn decode(&self, out: &mut [f32; 1]) {
        *out = [f16::from_le_bytes(self.0).to_f32()];
    }

    fn encode(x: &[f32; 1]) -> Option<Self> {
        Some(Self(f16::from_f32(x[0]).to_le_bytes()))
    }
}

impl Block<1> for PlainBf16 {
    fn decode(&self, out: &mut [f32; 1]) {
        *out = [bf16::from_le_bytes(self.0).to_f32()];
    }

    fn encode(x: &[f32; 1]) -> Option<Self> {
        Some(Self(bf16::from_f32(x[0]).to_le_bytes()))
    }
}
