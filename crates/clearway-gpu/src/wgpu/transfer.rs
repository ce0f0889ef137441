//! Copies between host and device: wgpu's own way up, buffers that are mapped again and again down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use wgpu::{BufferUsages, MapMode};

use super::context::Context;
use super::memory::WgpuMemory;
use crate::error::{GpuError, Result};
use crate::lowering::Piece as _;

/// Bytes on their way up before they are handed over: wgpu keeps them in memory of the host until then.
const FLUSH_BYTES: u64 = 64 << 20;
/// Bytes of a copy down at most, and of the smallest buffer for one.
const LARGEST: u64 = 64 << 20;
const SMALLEST: u64 = 64 << 10;
/// Buffers that are kept.
const KEPT: usize = 4;
/// Copies are whole words.
const WORD: u64 = 4;

/// Buffers for copies down, and how much is on its way up.
#[derive(Default)]
pub(super) struct Staging {
    free: Mutex<Vec<wgpu::Buffer>>,
    up: AtomicU64,
    /// What the clock shows when the last flush is done.
    flushed: AtomicU64,
}

impl Staging {
    /// Copies to the device, ordered before everything that is handed over later.
    pub(super) fn write(&self, memory: &WgpuMemory, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // Words at the edges keep the bytes that are not written.
        let head = (offset.next_multiple_of(WORD) - offset).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        let (middle, tail) = rest.split_at(rest.len() / WORD as usize * WORD as usize);
        self.patch(memory, offset, head)?;
        let at = offset + head.len() as u64;
        self.send(memory, at, middle)?;
        self.patch(memory, at + middle.len() as u64, tail)
    }

    /// Replaces some bytes of a word.
    fn patch(&self, memory: &WgpuMemory, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let first = offset / WORD * WORD;
        let mut word = [0; WORD as usize];
        // What lies behind the end is nobody's.
        if first != offset || offset + (bytes.len() as u64) < memory.len() {
            self.read(memory, first, &mut word)?;
        }
        let start = (offset - first) as usize;
        word[start..start + bytes.len()].copy_from_slice(bytes);
        self.send(memory, first, &word)
    }

    fn send(&self, memory: &WgpuMemory, offset: u64, words: &[u8]) -> Result<()> {
        let context = &memory.context;
        for (index, part) in words.chunks(FLUSH_BYTES as usize).enumerate() {
            let at = offset + index as u64 * FLUSH_BYTES;
            context.queue.write_buffer(&memory.buffer, at, part);
            let len = part.len() as u64;
            if self.up.fetch_add(len, Ordering::Relaxed) + len >= FLUSH_BYTES {
                self.up.store(0, Ordering::Relaxed);
                let value = context.submit([])?;
                // No more than two flushes are under way.
                let before = self.flushed.swap(value, Ordering::Relaxed);
                context.wait(before)?;
            }
        }
        context.check("Queue::write_buffer")
    }

    /// Copies to the host, after everything that was handed over before.
    pub(super) fn read(&self, memory: &WgpuMemory, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let context = &memory.context;
        for (index, part) in bytes.chunks_mut((LARGEST - WORD) as usize).enumerate() {
            let start = offset + index as u64 * (LARGEST - WORD);
            self.read_part(context, memory, start, part)?;
        }
        Ok(())
    }

    fn read_part(
        &self,
        context: &Context,
        memory: &WgpuMemory,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<()> {
        let first = offset / WORD * WORD;
        let size = (offset + bytes.len() as u64).next_multiple_of(WORD) - first;
        let buffer = self.take(context, size)?;
        let copy = || {
            let mut encoder = context.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&memory.buffer, first, &buffer, 0, size);
            encoder.finish()
        };
        let commands = context.scoped("CommandEncoder::copy_buffer_to_buffer", 0, copy)?;
        let value = context.submit([commands])?;
        let told = Arc::new(OnceLock::new());
        let tell = told.clone();
        buffer.map_async(MapMode::Read, ..size, move |result| {
            let _ = tell.set(result.map_err(|error| error.to_string()));
        });
        context.wait(value)?;
        // Another thread may have found out first that the copy is done, and answers when it comes to it.
        context.until(|| told.get().is_some())?;
        let failed =
            |call, reason| GpuError::Driver { device: context.info.name.clone(), call, reason };
        match told.get() {
            Some(Ok(())) => {}
            Some(Err(reason)) => return Err(failed("Buffer::map_async", reason.clone())),
            None => return Err(failed("Buffer::map_async", "it was not answered".into())),
        }
        let shift = (offset - first) as usize;
        {
            let view = buffer
                .get_mapped_range(..size)
                .map_err(|error| failed("Buffer::get_mapped_range", error.to_string()))?;
            bytes.copy_from_slice(&view[shift..shift + bytes.len()]);
        }
        buffer.unmap();
        self.give_back(buffer);
        Ok(())
    }

    /// A buffer of so many bytes or more.
    fn take(&self, context: &Context, size: u64) -> Result<wgpu::Buffer> {
        {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = free.iter().enumerate().filter(|(_, buffer)| buffer.size() >= size);
            let smallest = fits.min_by_key(|(_, buffer)| buffer.size()).map(|(index, _)| index);
            if let Some(index) = smallest {
                return Ok(free.swap_remove(index));
            }
        }
        let description = wgpu::BufferDescriptor {
            label: Some("staging"),
            size: size.next_power_of_two().max(SMALLEST),
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let make = || context.device.create_buffer(&description);
        context.scoped("Device::create_buffer", size, make)
    }

    fn give_back(&self, buffer: wgpu::Buffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(buffer);
        if free.len() > KEPT {
            // The largest goes: small ones are wanted more often.
            let largest = free.iter().enumerate().max_by_key(|(_, buffer)| buffer.size());
            if let Some(index) = largest.map(|(index, _)| index) {
                free.swap_remove(index);
            }
        }
    }
}
