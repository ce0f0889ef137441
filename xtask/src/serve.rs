//! `clearway serve` under the clients of others: the part `serve` of the test command, and `cargo xtask serve-clients`.
//!
//! Every client lives in a Python environment of its own below the target folder, made once and kept. The server is the
//! program that the tests built, on the CPU, with the default model.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::step;
use crate::test::built;

/// Clients that the test command runs.
const CLIENTS: [&str; 2] = ["openai==3.49.0", "anthropic==2.8.0"];
const SCHEMAS: [&str; 1] = ["jsonschema[format]==4.26.0"];
const SCHEMATHESIS: [&str; 1] = ["schemathesis==4.32.0"];
/// Random schemas in `serve-clients`.
const SCHEMA_COUNT: u32 = 1000;
/// Seconds of schemathesis in the test command, and in `serve-clients`.
const TEST_SECONDS: u64 = 60;
const FULL_SECONDS: u64 = 600;
/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
/// Name of the default model.
const MODEL: &str = "smollm2:135m";

/// Makes the environments of the test command; why they cannot be made.
pub fn missing(root: &Path) -> Option<String> {
    let made = environment(root, "clients", &CLIENTS)
        .and_then(|_| environment(root, "schemathesis", &SCHEMATHESIS));
    made.err().map(|error| format!("{error:#}"))
}

/// The steps of the test command, each with its name.
pub fn steps(root: &Path) -> Result<Vec<(&'static str, Command, Server)>> {
    let server = || Server::start(root);
    let first = server()?;
    let clients = clients(root, &first)?;
    let second = server()?;
    let fuzz = schemathesis(root, &second, TEST_SECONDS)?;
    Ok(vec![("official clients", clients, first), ("schemathesis", fuzz, second)])
}

/// `cargo xtask serve-clients`: all of them, for longer; tells whether all of them agree.
pub fn run() -> Result<bool> {
    let root = crate::root()?;
    if let Some(why) = missing(&root) {
        bail!("{why}");
    }
    let build = crate::run::cargo(&root, &["build", "--workspace", "--all-features"]).status()?;
    if !build.success() {
        bail!("the build failed");
    }
    let server = Server::start(&root)?;
    let mut good = step("official clients", &mut clients(&root, &server)?);
    let mut schemas = python(&environment(&root, "schemas", &SCHEMAS)?);
    schemas.arg(root.join("tools/serve/schemas.py"));
    schemas.args([&server.url, MODEL, &SCHEMA_COUNT.to_string()]);
    good &= step("random schemas", &mut schemas);
    drop(server);
    let server = Server::start(&root)?;
    good &= step("schemathesis", &mut schemathesis(&root, &server, FULL_SECONDS)?);
    Ok(good)
}

fn clients(root: &Path, server: &Server) -> Result<Command> {
    let mut command = python(&environment(root, "clients", &CLIENTS)?);
    command.arg(root.join("tools/serve/clients.py")).args([&server.url, MODEL]);
    Ok(command)
}

/// Random requests by `/openapi.json`: no 5xx, no answer that is not as the document says, no wrong request accepted.
fn schemathesis(root: &Path, server: &Server, seconds: u64) -> Result<Command> {
    const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                          response_schema_conformance,negative_data_rejection,unsupported_method";
    let folder = environment(root, "schemathesis", &SCHEMATHESIS)?;
    let mut command = Command::new(folder.join("bin/schemathesis"));
    command.arg("run").arg(format!("{}/openapi.json", server.url));
    command.args(["--phases", "coverage,fuzzing", "--checks", CHECKS, "--request-timeout", "120"]);
    command.args([
        "--max-time",
        &seconds.to_string(),
        "--no-color",
        "--suppress-health-check",
        "all",
    ]);
    command.args(["--seed", &crate::seed()?.to_string()]).current_dir(&folder);
    Ok(command)
}

pub fn python(environment: &Path) -> Command {
    Command::new(environment.join("bin/python"))
}

/// A Python environment with these packages, made where it is not there.
pub fn environment(root: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = root.join(target).join("python").join(name);
    let (mark, wanted) = (folder.join("packages.txt"), packages.join("\n"));
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(folder);
    }
    println!("installing {}", packages.join(" "));
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder).status();
    if !made.is_ok_and(|status| status.success()) {
        bail!("python3 makes no environment: run `apt-get install python3-venv` as root");
    }
    let mut install = python(&folder);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    if !install.status()?.success() {
        bail!("pip cannot install {}", packages.join(" "));
    }
    std::fs::write(&mark, wanted)?;
    Ok(folder)
}

/// A server in a process of its own, which ends with this.
pub struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(root: &Path) -> Result<Self> {
        let mut child = built(root, "clearway")
            .args(["serve", "-m", MODEL, "--device", "cpu", "--port", "0"])
            .args(["-c", "1024", "--log", "none"])
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
