//! Who carries out what.
//!
//! Nearly every dispatch is carried out by exactly one, so this is a table of numbers; those that
//! were repeated are kept apart.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Who carries each dispatch of the start out.
pub(super) struct Owners {
    /// The one who does, or [`REPEATED`].
    only: Vec<u32>,
    /// All who do, of those that were repeated.
    several: FxHashMap<u32, SmallVec<[u32; 4]>>,
}

/// Stands for several owners. No list has a dispatch of this number.
const REPEATED: u32 = u32::MAX;

impl Owners {
    /// Everyone carries out itself.
    pub(super) fn of_start(count: u32) -> Self {
        Self { only: (0..count).collect(), several: FxHashMap::default() }
    }

    /// Who carries out a dispatch of the start.
    pub(super) fn of(&self, index: u32) -> &[u32] {
        match &self.only[index as usize] {
            &REPEATED => self.several.get(&index).map_or(&[], SmallVec::as_slice),
            only => std::slice::from_ref(only),
        }
    }

    /// Puts others in the place of one owner of a dispatch.
    pub(super) fn replace(&mut self, index: u32, owner: u32, others: &[u32]) {
        let only = &mut self.only[index as usize];
        if let ([other], true) = (others, *only == owner) {
            *only = *other;
            return;
        }
        let several = self.several.entry(index).or_default();
        if *only != REPEATED {
            several.push(*only);
            *only = REPEATED;
        }
        several.retain(|held| *held != owner);
        several.extend_from_slice(others);
    }
}
