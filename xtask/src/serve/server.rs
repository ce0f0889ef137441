//! A server in a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::test::built;

/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server, which ends with this.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub url: String,
}

impl Server {
    /// Starts one on the CPU and waits until it takes requests.
    ///
    /// # Errors
    /// It does not start, or does not get ready.
    pub fn start(root: &Path, model: &str, context: usize) -> Result<Self> {
        let mut child = built(root, "clearway")
            .args(["serve", "-m", model, "--device", "cpu", "--port", "0"])
            .args(["-c", &context.to_string(), "--log", "none"])
            .stderr(Stdio::piped())
            .spawn()
            .context("clearway cannot be started")?;
        let start = Instant::now();
        let Some(errors) = child.stderr.take() else { bail!("the server has no stderr") };
        let mut lines = BufReader::new(errors).lines();
        let mut url = None;
        while start.elapsed() < PATIENCE {
            let Some(line) = lines.next() else { break };
            let line = line?;
            println!("{line}");
            if let Some((_, found)) = line.split_once("listening on ") {
                url = Some(found.to_owned());
            }
            if line.starts_with("ready") {
                // What it says later is passed on.
                std::thread::spawn(move || {
                    lines.map_while(Result::ok).for_each(|line| println!("{line}"))
                });
                let Some(url) = url else { break };
                return Ok(Self { child, url });
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        bail!("the server did not get ready")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
