//! Threads of a driver that look around by the clock do so less often.
//!
//! A driver starts threads of its own when it is loaded and when a device is opened. NVIDIA's wake up 250
//! times a second while the card works and 100 times while it does nothing; on a virtual machine each
//! time costs tens of microseconds of a core, which used to be most of what a generated token cost the
//! host. Linux lets timers of a thread be late by its *slack*, and a thread starts with the slack of
//! the one that started it. Whatever else such a thread waits for still wakes it at once.

/// How late the timers of a driver's threads may be. The device is as fast with ten times as much; this is
/// still short for everybody who waits for what such a thread finds.
#[cfg(target_os = "linux")]
const SLACK: std::time::Duration = std::time::Duration::from_millis(50);

/// Runs `start`, which makes the driver start threads.
#[cfg(target_os = "linux")]
pub(super) fn with_slack<T>(start: impl FnOnce() -> T) -> T {
    use std::num::NonZeroU64;

    use rustix::thread::{current_timer_slack, set_current_timer_slack};

    /// Gives the calling thread its own slack back.
    struct Restore(u64);

    impl Drop for Restore {
        fn drop(&mut self) {
            // Zero stands for what the thread started with. A failure would leave its timers late.
            let _ = set_current_timer_slack(NonZeroU64::new(self.0));
        }
    }

    let Ok(before) = current_timer_slack() else { return start() };
    let _restore = Restore(before);
    // Where the system refuses, threads wake up as often as they like.
    let _ = set_current_timer_slack(NonZeroU64::new(SLACK.as_nanos() as u64));
    start()
}

/// Runs `start`.
#[cfg(not(target_os = "linux"))]
pub(super) fn with_slack<T>(start: impl FnOnce() -> T) -> T {
    start()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::current_timer_slack;

    use super::*;

    #[test]
    fn threads_that_start_meanwhile_are_late_and_nobody_else_is() {
        let own = current_timer_slack().unwrap();
        assert!(u128::from(own) < SLACK.as_nanos(), "timers of this thread are late: {own} ns");
        let slack_of_new = || std::thread::spawn(|| current_timer_slack().unwrap()).join().unwrap();
        assert_eq!(u128::from(with_slack(slack_of_new)), SLACK.as_nanos());
        assert_eq!((current_timer_slack().unwrap(), slack_of_new()), (own, own));
        let failed = std::panic::catch_unwind(|| with_slack(|| panic!("no driver")));
        assert!(failed.is_err());
        assert_eq!(current_timer_slack().unwrap(), own);
    }
}
