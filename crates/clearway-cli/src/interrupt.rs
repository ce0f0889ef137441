//! Ctrl-C as a flag.
//!
//! A command that writes files or holds a conversation must not just end: it stops at the next
//! token, chunk or file block, cleans up and says so. A command that never looks at the flag does
//! not catch signals, so that they end it as usual.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Instant;

/// Exit status of a command that was interrupted: 128 and the signal's number, as shells have it.
pub const STATUS: u8 = 130;
/// A second signal after so long ends the process whatever it does.
const PATIENCE_MS: u64 = 1000;

static WANTED: AtomicBool = AtomicBool::new(false);
static FIRST_MS: AtomicU64 = AtomicU64::new(0);
static AT_PROMPT: AtomicBool = AtomicBool::new(false);

/// The error of a command that was interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on signals only set the flag.
pub fn catch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        now_ms();
        // Without a handler signals end the process, which is what they did before.
        let _ = ctrlc::set_handler(|| {
            let now = now_ms();
            let again = WANTED.swap(true, Ordering::SeqCst);
            if !again {
                FIRST_MS.store(now, Ordering::SeqCst);
            }
            let waited = now.saturating_sub(FIRST_MS.load(Ordering::SeqCst));
            // At a prompt Ctrl-C is a key, so this signal came from elsewhere and means the end.
            if AT_PROMPT.load(Ordering::SeqCst) || (again && waited > PATIENCE_MS) {
                std::process::exit(i32::from(STATUS));
            }
        });
    });
}

/// Whether the user wants to stop.
pub fn wanted() -> bool {
    WANTED.load(Ordering::SeqCst)
}

/// An error if the user wants to stop.
pub fn check() -> Result<(), Interrupted> {
    if wanted() { Err(Interrupted) } else { Ok(()) }
}

/// The wish to stop has been met.
pub fn forget() {
    WANTED.store(false, Ordering::SeqCst);
}

/// Runs something that waits for keys.
pub fn at_prompt<T>(read: impl FnOnce() -> T) -> T {
    AT_PROMPT.store(true, Ordering::SeqCst);
    let line = read();
    AT_PROMPT.store(false, Ordering::SeqCst);
    line
}

fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}
