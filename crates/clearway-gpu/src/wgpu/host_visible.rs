//! Memory that the host looks at while work is under way.
//!
//! wgpu lets nobody see a buffer that the device may write. So each submission ends with a copy of the buffer into
//! a buffer of its own, which the host maps when the submission is done. A look finds what the last finished
//! submission left. The buffers are used again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgpu::{BufferUsages, CommandEncoder, MapMode};

use super::context::Context;
use super::memory::WgpuMemory;
use crate::error::{GpuError, Result};

const WAITING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// What the host sees of a buffer.
pub(super) struct HostVisible(Mutex<State>);

#[derive(Default)]
struct State {
    /// What the last finished submission left, or the host wrote.
    seen: Vec<u8>,
    /// Copies under way, in order.
    copies: VecDeque<Copy>,
    /// Buffers to be used again.
    free: Vec<wgpu::Buffer>,
}

struct Copy {
    buffer: wgpu::Buffer,
    mapped: Arc<AtomicU8>,
    /// What the clock shows when it is done.
    clock: u64,
}

impl HostVisible {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Mutex::new(State { seen: vec![0; bytes as usize], ..State::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host wrote.
    pub(super) fn written(&self, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        if let Some(seen) = self.state().seen.get_mut(start..start + bytes.len()) {
            seen.copy_from_slice(bytes);
        }
    }

    /// Adds the copy to the end of a submission; [`map`](Self::map) follows when it is handed over.
    pub(super) fn copy(
        memory: &WgpuMemory,
        context: &Context,
        encoder: &mut CommandEncoder,
    ) -> Result<Option<wgpu::Buffer>> {
        let Some(host_visible) = &memory.host_visible else { return Ok(None) };
        let size = memory.buffer.size();
        let free = host_visible.state().free.pop();
        let buffer = match free {
            Some(buffer) => buffer,
            None => {
                let description = wgpu::BufferDescriptor {
                    label: Some("host-visible"),
                    size,
                    usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                };
                let make = || context.device.create_buffer(&description);
                context.scoped("Device::create_buffer", size, make)?
            }
        };
        encoder.copy_buffer_to_buffer(&memory.buffer, 0, &buffer, 0, size);
        Ok(Some(buffer))
    }

    /// Asks to see a copy that was handed over and is done when the clock shows `clock`.
    pub(super) fn map(&self, buffer: wgpu::Buffer, clock: u64) {
        let mapped = Arc::new(AtomicU8::new(WAITING));
        let told = mapped.clone();
        buffer.map_async(MapMode::Read, .., move |result| {
            told.store(if result.is_ok() { READY } else { FAILED }, Ordering::Release);
        });
        self.state().copies.push_back(Copy { buffer, mapped, clock });
    }

    /// Copies what the last finished submission left.
    pub(super) fn look(&self, context: &Context, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let done = context.done()?;
        let mut state = self.state();
        while let Some(copy) = state.copies.front() {
            if copy.clock <= done {
                // It is there, even if another thread has yet to say so.
                context.until(|| copy.mapped.load(Ordering::Acquire) != WAITING)?;
            }
            let mapped = copy.mapped.load(Ordering::Acquire);
            if mapped == WAITING {
                break;
            }
            let Some(Copy { buffer, .. }) = state.copies.pop_front() else { break };
            if mapped == FAILED {
                context.check("Buffer::map_async")?;
                continue;
            }
            let newest = state
                .copies
                .front()
                .is_none_or(|next| next.mapped.load(Ordering::Acquire) != READY);
            if newest {
                let view = buffer.get_mapped_range(..).map_err(|error| GpuError::Driver {
                    device: context.info.name.clone(),
                    call: "Buffer::get_mapped_range",
                    reason: error.to_string(),
                })?;
                let len = state.seen.len();
                state.seen.copy_from_slice(&view[..len]);
            }
            buffer.unmap();
            state.free.push(buffer);
        }
        let start = offset as usize;
        bytes.copy_from_slice(&state.seen[start..start + bytes.len()]);
        Ok(())
    }
}
