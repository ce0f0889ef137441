//! Progress bars on standard error: drawn on a terminal, silent elsewhere.

use std::time::Duration;

use clearway_llm::fetch::Watch;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{interrupt, out};

/// A bar of bytes, gone when it is dropped.
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar without a length yet. Indicatif draws to standard error, and only if it is a terminal.
    pub fn new(message: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(style("{spinner} {wide_msg}"));
        bar.set_message(out::clean(message).into_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// So many bytes of `total`.
    pub fn at(&self, done: u64, total: Option<u64>) {
        if let Some(total) = total
            && self.bar.length() != Some(total)
        {
            self.bar.set_length(total);
            // The message is what gives way on a narrow terminal: a line that wraps leaves pieces.
            self.bar.set_style(style(
                "{spinner} {wide_msg} [{bar:16}] {decimal_bytes}/{decimal_total_bytes}",
            ));
        }
        self.bar.set_position(done);
    }

    /// So many tokens of `total`.
    pub fn tokens(&self, done: u64, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.bar.set_style(style("{spinner} {wide_msg} [{bar:16}] {pos}/{len} tokens"));
        }
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A fetch that shows a bar and ends with Ctrl-C.
#[derive(Default)]
pub struct FetchBar {
    bar: Option<Bar>,
}

impl Watch for FetchBar {
    fn say(&mut self, line: &str) {
        self.bar = None; // one line at a time
        self.bar = Some(Bar::new(line));
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        if let Some(bar) = &self.bar {
            bar.at(done, total);
        }
    }

    fn stopped(&self) -> bool {
        interrupt::wanted()
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template);
    // A template that does not parse would only cost the looks.
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}
