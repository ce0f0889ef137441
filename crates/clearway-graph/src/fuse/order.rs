//! The order in which candidates are tried.
//!
//! They are tried rule by rule over the whole list. A list that does not fit the caches would be
//! fetched again for every rule, so a long one is cut into tiles and each rule follows the one before
//! it at a distance of one tile. A candidate then comes before one of an earlier rule only where the
//! two are more than a tile apart, which changes nothing as long as tries so far apart do not meet:
//!
//! - A try looks at and changes the dispatches it would fuse, and looks at whoever uses a value of
//!   theirs or is their neighbour in the hazard graph, if it needs that. With no use of a value and no
//!   neighbour further than `reach`, and nothing that would be fused further than that from the
//!   consumer, it looks at most 3 `reach` away and changes what is at most 1 `reach` away. Two tries
//!   meet within 4 `reach`, and one makes others worth trying within 4.
//! - Of those, the ones that rule by rule would come next are tried next here, too. As long as a chain
//!   of them does not lead back further than 4 `reach`, a tile of 12 keeps all of this away from what
//!   was tried ahead of its turn.
//!
//! How far apart values are used is measured before, the rest is watched. Where it does not hold, the
//! stage starts again with the whole list as one tile.

use super::list::Candidate;
use super::rules::{RULES, Rule};
use crate::op::CapturedOpKind;

/// Tiles are this many times as long as the reach.
const TILE: u32 = 12;
/// How far back a chain of tries may lead, in the same measure.
const CHAIN: u32 = 4;
/// A list of fewer tiles has one.
const FEW_TILES: u32 = 4;

/// The order in which candidates are tried.
pub(super) struct Order {
    /// Dispatches of a tile.
    tile: u32,
    reach: u32,
    /// How many rules that may apply to the list stand before each.
    ranks: Vec<u32>,
    /// The furthest candidate that was tried.
    front: Option<Candidate>,
}

impl Order {
    /// Rule by rule over the whole list.
    pub(super) const fn whole() -> Self {
        Self { tile: u32::MAX, reach: 0, ranks: Vec::new(), front: None }
    }

    /// For a list of `count` dispatches of these kinds, in the order of their ids, in which no two uses
    /// of one value that is written are further apart than `reach`.
    pub(super) fn tiled(count: u32, kinds: KindSet, reach: u32) -> Self {
        let reach = reach.max(1);
        match reach.checked_mul(TILE) {
            Some(tile) if count / tile >= FEW_TILES => {
                Self { tile, reach, ranks: kinds.ranks(), front: None }
            }
            _ => Self::whole(),
        }
    }

    /// Whether the list has several tiles.
    pub(super) const fn is_tiled(&self) -> bool {
        self.tile < u32::MAX
    }

    /// When a rule is tried on a consumer.
    pub(super) fn round(&self, rule: u32, consumer: u32) -> u32 {
        match self.is_tiled() {
            true => self.ranks[rule as usize] + consumer / self.tile,
            false => rule,
        }
    }

    /// Notes that a candidate is tried next; says whether the order still is as good as rule by rule.
    pub(super) fn holds_at(&mut self, candidate: Candidate) -> bool {
        match self.front {
            Some(front) if candidate < front => {
                let back = front.consumer.saturating_sub(candidate.consumer);
                !self.is_tiled() || back <= CHAIN * self.reach
            }
            _ => {
                self.front = Some(candidate);
                true
            }
        }
    }

    /// Whether the order does not allow for a try that concerns what stands this far from its consumer.
    pub(super) const fn is_far(&self, distance: u32) -> bool {
        self.is_tiled() && distance > self.reach
    }
}

/// Kinds that occur in a list.
#[derive(Clone, Copy, Default)]
pub(super) struct KindSet(u128);

const _: () = assert!(CapturedOpKind::COUNT <= u128::BITS as usize);

impl KindSet {
    pub(super) fn insert(&mut self, kind: CapturedOpKind) {
        self.0 |= 1 << kind.index();
    }

    fn contains(self, kind: CapturedOpKind) -> bool {
        self.0 & 1 << kind.index() != 0
    }

    /// How many rules that may apply stand before each: to these kinds, and to what they become.
    fn ranks(mut self) -> Vec<u32> {
        let applies =
            |set: Self, rule: &Rule| set.contains(rule.producer) && set.contains(rule.consumer);
        for _ in RULES.iter() {
            for rule in RULES.iter() {
                if applies(self, rule) {
                    self.insert(rule.fused);
                }
            }
        }
        let mut before = 0;
        let rank = |rule: &Rule| {
            let rank = before;
            before += u32::from(applies(self, rule));
            rank
        };
        RULES.iter().map(rank).collect()
    }
}
