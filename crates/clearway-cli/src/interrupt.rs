//! Signals.
//!
//! | signal | a command that calls [`catch`] | any other command | status |
//! |---|---|---|---|
//! | SIGINT | sees [`wanted`], stops at the next token, chunk or file block; a second one after a second ends it | ends at once | 130 |
//! | SIGTERM | sees [`wanted`]; ends at once if it has not ended in half a second | ends at once | 143 |
//! | SIGHUP | as SIGTERM; left alone where the process was started to ignore it, as by `nohup` | as SIGTERM | 129 |
//!
//! A command that calls [`drain`] sees [`wanted`] for any of them and takes the time it needs; a second signal ends it.
//! [`drained`] says that it ended by itself, with status 0.
//!
//! "At once" removes unfinished output files, gives the terminal its settings back and leaves without destructors:
//! what is in flight on a device is the driver's to clean up, and no thread is stopped halfway through.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A second SIGINT after so long ends the process whatever it does.
const PATIENCE_MS: u64 = 1000;
/// How long a command that was told to end may take to clean up.
const GRACE: Duration = Duration::from_millis(500);
/// 128 and the number of SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

/// A signal came, and what it asks for has not been done.
static WANTED: AtomicBool = AtomicBool::new(false);
/// Status of the signal that ends the process; 0 for none.
static ENDING: AtomicU8 = AtomicU8::new(0);
static CAUGHT: AtomicBool = AtomicBool::new(false);
static AT_PROMPT: AtomicBool = AtomicBool::new(false);
static DRAINS: AtomicBool = AtomicBool::new(false);
static FIRST_MS: AtomicU64 = AtomicU64::new(0);

/// The error of a command that a signal ended.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match status() {
            INTERRUPTED => "interrupted",
            129 => "ended by SIGHUP",
            _ => "ended by SIGTERM",
        })
    }
}

impl std::error::Error for Interrupted {}

/// Starts to listen for signals.
pub fn listen() {
    now_ms();
    system::listen();
}

/// From now on SIGINT only sets the flag.
pub fn catch() {
    CAUGHT.store(true, Ordering::SeqCst);
}

/// From now on the first signal only sets the flag, whichever it is.
pub fn drain() {
    DRAINS.store(true, Ordering::SeqCst);
}

/// What a signal asked for is done, and nothing was lost.
pub fn drained() {
    ENDING.store(0, Ordering::SeqCst);
}

/// Does something during which signals set the flag.
pub fn caught<T>(work: impl FnOnce() -> T) -> T {
    let before = CAUGHT.swap(true, Ordering::SeqCst);
    let result = work();
    CAUGHT.store(before, Ordering::SeqCst);
    result
}

/// Whether the user wants to stop.
pub fn wanted() -> bool {
    WANTED.load(Ordering::SeqCst) || ending().is_some()
}

/// An error if the user wants to stop.
pub fn check() -> Result<(), Interrupted> {
    if wanted() { Err(Interrupted) } else { Ok(()) }
}

/// Status of the signal that ends the process whatever it does, if one came.
pub fn ending() -> Option<u8> {
    Some(ENDING.load(Ordering::SeqCst)).filter(|&status| status != 0)
}

/// Exit status of a command that a signal ended.
pub fn status() -> u8 {
    ending().unwrap_or(INTERRUPTED)
}

/// The wish to stop has been met. A wish for the end of the process stays.
pub fn forget() {
    WANTED.store(false, Ordering::SeqCst);
}

/// Runs something that waits for keys.
pub fn at_prompt<T>(read: impl FnOnce() -> T) -> T {
    terminal::save();
    AT_PROMPT.store(true, Ordering::SeqCst);
    let line = read();
    AT_PROMPT.store(false, Ordering::SeqCst);
    line
}

/// What a signal does; runs on a thread of its own, not inside the handler.
fn received(status: u8) {
    let now = now_ms();
    // Before the flag: whoever sees it may be back at the prompt at once.
    let is_caught = CAUGHT.load(Ordering::SeqCst) && !AT_PROMPT.load(Ordering::SeqCst);
    let again = WANTED.swap(true, Ordering::SeqCst);
    if !again {
        FIRST_MS.store(now, Ordering::SeqCst);
    }
    let waited = now.saturating_sub(FIRST_MS.load(Ordering::SeqCst));
    if DRAINS.load(Ordering::SeqCst) {
        let _ = ENDING.compare_exchange(0, status, Ordering::SeqCst, Ordering::SeqCst);
        if again {
            end(status);
        }
        return;
    }
    if status == INTERRUPTED {
        // At a prompt Ctrl-C is a key, so a signal came from elsewhere and means the end.
        if !is_caught || (again && waited > PATIENCE_MS) {
            end(status);
        }
        return;
    }
    let _ = ENDING.compare_exchange(0, status, Ordering::SeqCst, Ordering::SeqCst);
    if is_caught {
        std::thread::sleep(GRACE);
    }
    end(status)
}

/// Ends the process at once.
fn end(status: u8) -> ! {
    clearway_llm::output::discard_unfinished();
    terminal::restore();
    system::leave(i32::from(status))
}

fn now_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[cfg(unix)]
mod system {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    pub fn listen() {
        let mut wanted = vec![SIGINT, SIGTERM];
        if !ignores(SIGHUP) {
            wanted.push(SIGHUP);
        }
        // Without a handler signals end the process, which is what they did before.
        let Ok(mut signals) = Signals::new(wanted) else { return };
        let listener = std::thread::Builder::new().name("signals".into());
        let _ = listener.spawn(move || {
            for signal in signals.forever() {
                super::received(128 + signal as u8);
            }
        });
    }

    /// Whether the process was started to ignore a signal, where the system says.
    fn ignores(signal: i32) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }

    /// Without exit handlers: those of a driver may meet threads that still compute.
    pub fn leave(status: i32) -> ! {
        signal_hook::low_level::exit(status)
    }
}

#[cfg(not(unix))]
mod system {
    pub fn listen() {
        let _ = ctrlc::set_handler(|| super::received(super::INTERRUPTED));
    }

    pub fn leave(status: i32) -> ! {
        std::process::exit(status)
    }
}

/// The settings of the terminal, which a line editor changes while it waits for keys.
#[cfg(unix)]
mod terminal {
    use std::io::{IsTerminal, Write};

    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    use super::{AT_PROMPT, Mutex, Ordering, PoisonError};

    static SAVED: Mutex<Option<Termios>> = Mutex::new(None);
    /// Ends bracketed paste, which a line editor switches on.
    const PASTE_OFF: &[u8] = b"\x1b[?2004l\n";

    pub fn save() {
        let settings = tcgetattr(std::io::stdin()).ok();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    pub fn restore() {
        if !AT_PROMPT.load(Ordering::SeqCst) {
            return;
        }
        let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(settings) = &*saved {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, settings);
            // Standard error: the editor's thread may hold the lock of standard output.
            let mut out = std::io::stderr();
            if out.is_terminal() {
                let _ = out.write_all(PASTE_OFF);
            }
        }
    }
}

#[cfg(not(unix))]
mod terminal {
    pub fn save() {}
    pub fn restore() {}
}
