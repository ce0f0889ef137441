//! What the verifier objects to, with the facts and the story.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::ids::{DispatchId, buf_name, serialize_buf};
use crate::node::HazardKind;
use crate::op::CapturedOpKind;

/// One of the proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// The final list carries out the recorded dispatches, each once, on the same tensors.
    Structure,
    /// No two conflicting accesses lie in one group.
    Groups,
    /// Every byte read was last written by the dispatch that wrote it in the recorded list.
    ValueFlow,
    /// The other proofs also hold for the list followed by itself.
    WrapAround,
    /// A dispatch that stands for several recorded ones is what the rules make of them.
    Derivation,
}

impl Proof {
    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Structure => "structure",
            Self::Groups => "groups",
            Self::ValueFlow => "value flow",
            Self::WrapAround => "wrap-around",
            Self::Derivation => "derivation",
        }
    }
}

/// What a byte holds, told by where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Nothing yet: a temporary value that was never written.
    Undefined,
    /// What lay there before the list ran.
    Initial {
        /// The buffer it lay in.
        #[serde(rename = "buf", serialize_with = "serialize_buf")]
        buf_id: usize,
        /// The byte of that buffer.
        byte: u64,
    },
    /// What a recorded dispatch wrote.
    Written {
        /// The recorded dispatch.
        dispatch: DispatchId,
        /// Index into its accesses.
        access: u16,
        /// The byte, counted from the first of that access.
        byte: u64,
    },
    /// What a dispatch with unknown access left there.
    Unknown {
        /// That dispatch.
        dispatch: DispatchId,
        /// The buffer or value.
        #[serde(rename = "buf", serialize_with = "serialize_buf")]
        buf_id: usize,
        /// The byte of that buffer or value.
        byte: u64,
    },
}

impl Content {
    /// The recorded dispatch it comes from.
    pub const fn dispatch(&self) -> Option<DispatchId> {
        match self {
            Self::Undefined | Self::Initial { .. } => None,
            Self::Written { dispatch, .. } | Self::Unknown { dispatch, .. } => Some(*dispatch),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undefined => f.write_str("nothing defined"),
            Self::Initial { buf_id, byte } => {
                write!(f, "what {} held at byte {byte} before the list", buf_name(*buf_id))
            }
            Self::Written { dispatch, access, byte } => {
                write!(f, "byte {byte} of what {dispatch} wrote by its access {access}")
            }
            Self::Unknown { dispatch, buf_id, byte } => {
                write!(f, "what {dispatch} left at byte {byte} of {}", buf_name(*buf_id))
            }
        }
    }
}

/// Bytes of one buffer, as the final list addresses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FaultBytes {
    /// Identity of the buffer.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// First byte.
    pub p0: u64,
    /// One past the last byte.
    pub p1: u64,
}

impl fmt::Display for FaultBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes {}..{}", buf_name(self.buf_id), self.p0, self.p1)
    }
}

/// Why a fused dispatch is not what the rules make of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Underived {
    /// No rules make its kind of ops of these kinds, in this order.
    NoRule {
        /// What they make of them.
        instead: Option<CapturedOpKind>,
    },
    /// In the recorded list the consumer of this rule did not read what its producer wrote, whole and
    /// through the same view.
    Apart {
        /// Name of the rule.
        rule: &'static str,
    },
    /// An operand does not have the shape that this rule asks for.
    Shapes {
        /// Name of the rule.
        rule: &'static str,
    },
    /// Two operands that this rule wants to be one tensor are not.
    NotSame {
        /// Name of the rule.
        rule: &'static str,
    },
    /// Its constants are not those of the members, one after another.
    Constants,
    /// It has another number of bindings.
    Bindings,
    /// The rules put another tensor there.
    Binding {
        /// Index of the binding.
        binding: u16,
    },
    /// Its accesses through a binding are not those of the member that the rules put there.
    Access {
        /// Index of the binding.
        binding: u16,
    },
}

impl fmt::Display for Underived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRule { instead: None } => f.write_str("no rules make that of them"),
            Self::NoRule { instead: Some(kind) } => write!(f, "the rules make {kind} of them"),
            Self::Apart { rule } => {
                write!(
                    f,
                    "for {rule} one of them does not read what the other wrote, as it wrote it"
                )
            }
            Self::Shapes { rule } => {
                write!(f, "an operand does not have the shape that {rule} asks for")
            }
            Self::NotSame { rule } => {
                write!(f, "two operands are different tensors that {rule} wants to be one")
            }
            Self::Constants => f.write_str("its constants are not theirs, one after another"),
            Self::Bindings => f.write_str("the rules give that another number of bindings"),
            Self::Binding { binding } => {
                write!(f, "the rules put another tensor at binding {binding}")
            }
            Self::Access { binding } => {
                write!(
                    f,
                    "its accesses through binding {binding} are not those the rules put there"
                )
            }
        }
    }
}

/// The recorded dispatches that a fused one stands for, as told in a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    // Side by side, since a fault is handed through many results and has to stay small.
    ids: [DispatchId; Self::NAMED],
    /// By [`CapturedOpKind::index`].
    kinds: [u8; Self::NAMED],
    count: u16,
}

impl Members {
    /// Members that are told by name. What the rules make has one more at most, and faults have to stay small.
    const NAMED: usize = 6;

    pub(super) fn of(members: impl Iterator<Item = (DispatchId, CapturedOpKind)>) -> Self {
        let mut ids = [DispatchId(0); Self::NAMED];
        let mut kinds = [0; Self::NAMED];
        let mut count = 0;
        for (id, kind) in members {
            if count < Self::NAMED {
                (ids[count], kinds[count]) = (id, kind.index() as u8);
            }
            count += 1;
        }
        Self { ids, kinds, count: count as u16 }
    }

    /// Ids and kinds of the first of them, in order.
    pub fn named(&self) -> impl ExactSizeIterator<Item = (DispatchId, CapturedOpKind)> {
        self.ids
            .into_iter()
            .zip(self.kinds.map(CapturedOpKind::of_index))
            .take(usize::from(self.count).min(Self::NAMED))
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.count as usize
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (id, kind)) in self.named().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{id} {kind}")?;
        }
        match self.count() - self.named().len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.named())
    }
}

/// What is wrong. `dispatch`, `other` and `bytes` are the fields of the [`Fault`] around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Problem {
    /// The recorded `dispatch` is carried out by nothing in the final list.
    Lost,
    /// The recorded `dispatch` is carried out more than once, by `other` among others, and what it
    /// writes is left in memory.
    Repeated,
    /// `dispatch` of the final list stands for `other`, which was never recorded.
    NotRecorded,
    /// `dispatch` differs from what was recorded.
    Altered {
        /// In what.
        what: &'static str,
    },
    /// An access of `dispatch` does not lie in the view it goes through, or not where it was
    /// recorded.
    Moved,
    /// An access of `dispatch` has an origin outside its members, or one that is taken already.
    ForeignAccess,
    /// A recorded access of `other` is not carried out by `dispatch`, and it reads what comes from
    /// outside the fusion.
    AccessLost {
        /// Index into the accesses of `other`.
        access: u16,
    },
    /// `dispatch` stands on the wrong side of `other`, which nothing may cross.
    Crossed,
    /// `dispatch` binds a value that the plan gives no room.
    Unplaced,
    /// The plan puts a value of `dispatch` outside its slab.
    OutsideSlab,
    /// The buffer of a slab is also used by the recorded list.
    SlabInUse,
    /// The recorded `dispatch` writes a tensor with gaps and does not read the bytes that it keeps there.
    GapsOverwritten,
    /// The recorded `dispatch`, or the host at the end, reads `bytes` that nothing has written, of a
    /// value that is neither an input nor kept.
    UndefinedRead,
    /// `dispatch` and `other` conflict and are not ordered by a barrier.
    Conflict(HazardKind),
    /// `dispatch` touches unknown memory and shares its group with `other`.
    NotAlone,
    /// Two operands of `dispatch` share bytes that they did not share when it was recorded.
    OwnOperands(HazardKind),
    /// A read of `dispatch` sees something else than it saw in the recorded list.
    WrongRead {
        /// What it saw.
        expected: Content,
        /// What it would see.
        found: Content,
    },
    /// After the last dispatch, a buffer or an output holds something else than it would have.
    WrongResult {
        /// What the recorded list leaves.
        expected: Content,
        /// What the final list leaves.
        found: Content,
    },
    /// An input does not survive until the next replay.
    InputLost {
        /// What the recorded list leaves.
        expected: Content,
        /// What the final list leaves.
        found: Content,
    },
    /// `dispatch` is not what the rules make of the recorded dispatches it stands for.
    Underived {
        /// What it is said to compute.
        kind: CapturedOpKind,
        /// What it stands for.
        members: Members,
        /// What is wrong with it.
        why: Underived,
    },
    /// `dispatch` reads or writes a value rounded where no rule of the quantise stage allows that.
    Rounded {
        /// What it computes.
        kind: CapturedOpKind,
        /// Index of the binding.
        binding: u16,
    },
    /// `dispatch` gives a result as floats that exists only rounded.
    NotRounded {
        /// What it computes.
        kind: CapturedOpKind,
        /// Index of the binding.
        binding: u16,
    },
}

/// The first thing the verifier objects to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fault {
    /// The proof that failed.
    pub proof: Proof,
    /// What is wrong.
    pub problem: Problem,
    /// The dispatch at which it shows.
    pub dispatch: Option<DispatchId>,
    /// The other dispatch of the story: the one it conflicts with, or that wrote what it sees.
    pub other: Option<DispatchId>,
    /// The bytes it is about.
    pub bytes: Option<FaultBytes>,
}

impl Fault {
    pub(super) const fn new(proof: Proof, problem: Problem) -> Self {
        Self { proof, problem, dispatch: None, other: None, bytes: None }
    }

    pub(super) const fn at(mut self, dispatch: DispatchId) -> Self {
        self.dispatch = Some(dispatch);
        self
    }

    pub(super) const fn with(mut self, other: DispatchId) -> Self {
        self.other = Some(other);
        self
    }

    pub(super) const fn on(mut self, buf_id: usize, p0: u64, p1: u64) -> Self {
        self.bytes = Some(FaultBytes { buf_id, p0, p1 });
        self
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = Name(self.dispatch);
        let other = Name(self.other);
        write!(f, "{}: ", self.proof.name())?;
        match &self.problem {
            Problem::Lost => write!(f, "{at} was recorded, but nothing carries it out")?,
            Problem::Repeated => write!(f, "{at} was recorded once, but {other} repeats it")?,
            Problem::NotRecorded => write!(f, "{at} stands for {other}, which was not recorded")?,
            Problem::Altered { what } => write!(f, "{at} was recorded with another {what}")?,
            Problem::Moved => {
                write!(f, "an access of {at} does not lie where its view and the record put it")?;
            }
            Problem::ForeignAccess => {
                write!(f, "an access of {at} carries out no recorded access of its own")?;
            }
            Problem::AccessLost { access } => write!(
                f,
                "{at} drops access {access} of {other}, which reads what no member of it wrote"
            )?,
            Problem::Crossed => {
                write!(f, "{at} stands on the wrong side of {other}, which nothing may cross")?;
            }
            Problem::Unplaced => write!(f, "{at} binds a value without a place")?,
            Problem::OutsideSlab => write!(f, "a value of {at} is placed outside its slab")?,
            Problem::SlabInUse => write!(f, "the buffer of a slab is also one of {at}")?,
            Problem::GapsOverwritten => {
                write!(
                    f,
                    "{at} is recorded as if it wrote the gaps between the elements it writes"
                )?;
            }
            Problem::UndefinedRead => write!(f, "{at} reads what nothing has written")?,
            Problem::Conflict(kind) => {
                write!(f, "no barrier orders {at} and {other}, which conflict ({})", kind.name())?
            }
            Problem::NotAlone => {
                write!(f, "{at} touches unknown memory, but no barrier keeps {other} apart")?;
            }
            Problem::OwnOperands(kind) => write!(
                f,
                "operands of {at} share bytes they did not share when recorded ({})",
                kind.name()
            )?,
            Problem::WrongRead { expected, found } => {
                write!(f, "{at} reads {found}, but recorded it read {expected}")?;
            }
            Problem::WrongResult { expected, found } => {
                write!(f, "at the end there is {found}, but recorded there was {expected}")?;
            }
            Problem::InputLost { expected, found } => {
                write!(f, "the next replay finds {found} in an input that should hold {expected}")?
            }
            Problem::Underived { kind, members, why } => {
                write!(f, "{at} is to be {kind} of {members}, but {why}")?;
            }
            Problem::Rounded { kind, binding } => write!(
                f,
                "{at} ({kind}) finds binding {binding} rounded, which no rule of the quantise stage allows"
            )?,
            Problem::NotRounded { kind, binding } => {
                write!(f, "{at} ({kind}) must give binding {binding} rounded, but gives floats")?;
            }
        }
        match &self.bytes {
            Some(bytes) => write!(f, " ({bytes})"),
            None => Ok(()),
        }
    }
}

/// A dispatch in a story.
struct Name(Option<DispatchId>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => id.fmt(f),
            None => f.write_str("the host"),
        }
    }
}
