//! Whether a device starts workgroups so that those of a later dispatch may wait for those of an earlier one.
//!
//! Vulkan promises no order. A device that has one runs a list here whose groups wait for each other by counters:
//! dispatches that fill the device many times over, tiny ones, uneven work, memory that is written again as soon as its
//! readers are done. The result must be that of the list, and nobody may wait in vain. The answer is kept on disk beside
//! the tuning, by device and driver.

use std::sync::Arc;

use super::context::Context;
use super::memory::VulkanMemory;
use super::pipeline::COMPILER;
use crate::device::{DeviceMemory, Program};
use crate::error::Result;
use crate::lowering::cache::DiskCache;
use crate::lowering::lowered::{Bound, Lowered, Role};
use crate::lowering::{Backend, Piece};
use crate::wgsl::{COUNTED_ENTRY, Kernel, Packing, SYNC_WORDS, Trust};

/// Numbers that go from group to group.
const NUMBERS: u32 = 1 << 15;
/// Dispatches with so many workgroups for each processor, and with three in all, by turns.
const MANY: [u32; 4] = [1, 24, 4, 64];
const GROUPS: u32 = 48;
/// Runs one by one, and handed over together.
const RUNS: usize = 4;
const TOGETHER: usize = 64;

/// Whether it does, as found out now or in an earlier run.
pub(super) fn is_kept(context: &Arc<Context>) -> bool {
    if context.is_software() {
        return false;
    }
    let disk = DiskCache::open(context.instance.options.disk_cache);
    let key = format!("{}-{COMPILER}", context.adapter.cache_key);
    if let Some([answer]) = disk.load("order", &key).as_deref() {
        return *answer == 1;
    }
    let kept = test(context).unwrap_or(false);
    disk.store("order", &key, &[u8::from(kept)]);
    kept
}

/// Runs the list; an error counts as a failure.
pub(super) fn test(context: &Arc<Context>) -> Result<bool> {
    let bytes = u64::from(NUMBERS) * 4;
    let numbers = [
        VulkanMemory::new(context, bytes, Packing::Plain)?,
        VulkanMemory::new(context, bytes, Packing::Plain)?,
    ];
    let first: Vec<u32> = (0..NUMBERS).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    numbers[0].write(0, bytemuck::cast_slice(&first))?;
    let mut lowered = Lowered::default();
    for group in 0..GROUPS {
        let (from, to) = (&numbers[group as usize % 2], &numbers[(group as usize + 1) % 2]);
        let bound = Bound {
            ranges: [from.whole(), to.whole()].into_iter().collect(),
            written: [1].into_iter().collect(),
            ..Bound::default()
        };
        let many = MANY[group as usize / 2 % MANY.len()] * context.target().processors;
        let workgroups = if group % 2 == 0 { many.min(context.target().max_groups) } else { 3 };
        lowered.push_step("order", "order of workgroups", kernel(workgroups), bound, Role::Last);
        lowered.barrier();
    }
    let memory = numbers.map(Arc::new);
    let mut program = context.program(lowered, memory.to_vec())?;
    for _ in 0..RUNS {
        program.run()?;
    }
    let runs = program.start(TOGETHER)?;
    program.finish(runs)?;
    let mut found = vec![0_u32; NUMBERS as usize];
    memory[0].read(0, bytemuck::cast_slice_mut(&mut found))?;
    Ok(found == expected(first, (RUNS + TOGETHER) * GROUPS as usize))
}

/// What `groups` groups make of the numbers: each has another one at its place, and one more.
fn expected(mut numbers: Vec<u32>, groups: usize) -> Vec<u32> {
    for _ in 0..groups {
        let next = |i: u32| numbers[place_before(i) as usize].wrapping_add(1);
        numbers = (0..NUMBERS).map(next).collect();
    }
    numbers
}

fn place_before(i: u32) -> u32 {
    (i.wrapping_mul(8_191).wrapping_add(77)) % NUMBERS
}

fn kernel(workgroups: u32) -> Kernel {
    let mut words = vec![workgroups, NUMBERS, 0, 0];
    words.extend([0; SYNC_WORDS]);
    Kernel {
        source: [include_str!("order.wgsl"), COUNTED_ENTRY].concat(),
        groups: [workgroups, 1, 1],
        words,
        again: Vec::new(),
        scratch: None,
        trust: Trust::Own,
        counted: Some(Vec::new()),
    }
}
