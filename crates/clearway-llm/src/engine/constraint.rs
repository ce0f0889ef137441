//! What may come next, where that changes from token to token.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Result, TokenMask};

/// Which tokens may come next, from step to step: a grammar, for example.
///
/// Whoever chooses tokens asks for the mask before each one and tells the constraint what was chosen. An error fails the
/// text that the constraint belongs to and nothing else.
pub trait Constraint: Send {
    /// The tokens that may come next; `None` for all.
    ///
    /// # Errors
    /// What keeps the constraint from knowing.
    fn mask(&mut self) -> Result<Option<Arc<TokenMask>>>;

    /// Goes on behind a token that was chosen.
    ///
    /// # Errors
    /// A token that the mask does not allow.
    fn accept(&mut self, token: u32) -> Result<()>;
}

/// The constraint of one text, in its row of sampling data. Clones are the same constraint: a second text needs another.
#[derive(Clone)]
pub struct TextConstraint(Arc<Mutex<dyn Constraint>>);

impl TextConstraint {
    /// A constraint for one text.
    pub fn new(constraint: impl Constraint + 'static) -> Self {
        Self(Arc::new(Mutex::new(constraint)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, dyn Constraint + 'static> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TextConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TextConstraint")
    }
}

impl PartialEq for TextConstraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
