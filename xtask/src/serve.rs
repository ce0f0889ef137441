//! `clearway serve` under the clients of others: the part `serve` of the test command, and `cargo xtask serve-clients`.
//!
//! | module | what it does |
//! |---|---|
//! | `environment` | Python environments and Node, each below the target folder, made once and kept |
//! | `server` | a server in a process of its own |
//!
//! The server is the program that the tests built, on the CPU, with the default model.

mod server;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::environment::{node, packages_of_node, program, python};
use crate::run::{Suite, step};
use server::Server;

/// Clients that the test command runs.
const CLIENTS: [&str; 2] = ["openai==3.49.0", "anthropic==2.8.0"];
const SCHEMATHESIS: [&str; 1] = ["schemathesis==4.32.5"];
const SCHEMAS: [&str; 1] = ["jsonschema[format]==4.26.0"];
/// Libraries over the clients, by the names of their modules.
const FRAMES: [(&str, &str); 3] = [
    ("langchain", "langchain-openai==1.7.3"),
    ("pydantic_ai", "pydantic-ai-slim[openai]==2.66.0"),
    ("instructor", "instructor==1.17.0"),
];
const LITELLM: [&str; 1] = ["litellm[proxy]==1.102.4"];
const ROUTER: [&str; 1] = ["vllm-router==0.1.16"];
const MANIFESTS: [&str; 2] = ["kubernetes-validate==1.37.0", "pyyaml==6.0.3"];
/// Seconds of schemathesis in the test command.
const TEST_SECONDS: u64 = 60;
/// Name of the default model.
const MODEL: &str = "smollm2:135m";
/// Tokens of its context for clients, and for schemathesis, which asks for texts of any length.
const CONTEXT: usize = 1024;
const SHORT_CONTEXT: usize = 96;

/// How long `serve-clients` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Random JSON schemas.
    pub schemas: u64,
    /// Seconds of schemathesis.
    pub seconds: u64,
}

impl Extent {
    /// All of it.
    pub const FULL: Self = Self { schemas: 1000, seconds: 600 };

    /// The share of a soak with so many cases of so many.
    pub fn share(cases: u64, full: u64) -> Self {
        let part = |whole: u64, least: u64| (whole * cases / full).max(least);
        Self { schemas: part(Self::FULL.schemas, 20), seconds: part(Self::FULL.seconds, 20) }
    }
}

/// Makes the environments of the test command; why they cannot be made.
pub fn missing(root: &Path) -> Option<String> {
    let made =
        python(root, "clients", &CLIENTS).and_then(|_| python(root, "schemathesis", &SCHEMATHESIS));
    made.err().map(|error| format!("{error:#}"))
}

/// The steps of the test command: `run` is told the name of each.
///
/// # Errors
/// A server that does not start.
pub fn steps(root: &Path, mut run: impl FnMut(&str, &mut Command)) -> Result<()> {
    let server = Server::start(root, MODEL, CONTEXT)?;
    run("official clients", &mut clients(root, &server)?);
    drop(server);
    let server = Server::start(root, MODEL, SHORT_CONTEXT)?;
    run("schemathesis", &mut schemathesis(root, &server, TEST_SECONDS)?);
    Ok(())
}

/// `cargo xtask serve-clients`: all of them, for longer; tells whether all of them agree.
pub fn run(extent: Extent) -> Result<bool> {
    let root = crate::root()?;
    let build = crate::run::cargo(&root, &["build", "--workspace", "--all-features"]).status()?;
    if !build.success() {
        bail!("the build failed");
    }
    Ok(report(&root, extent)?.failed == 0)
}

/// Runs all clients on what is built.
pub fn report(root: &Path, extent: Extent) -> Result<Suite> {
    let start = Instant::now();
    let Extent { schemas, seconds } = extent;
    let (server, second) =
        (Server::start(root, MODEL, CONTEXT)?, Server::start(root, MODEL, CONTEXT)?);
    let mut steps = Vec::new();
    let mut run = |name: &'static str, command: Result<Command>| {
        let good = match command {
            Ok(mut command) => step(name, &mut command),
            Err(error) => {
                println!("\n== {name}\n{error:#}");
                false
            }
        };
        steps.push((name, good));
    };
    run("official clients", clients(root, &server));
    for (name, package) in FRAMES {
        run(name, tool(root, name, "frames", &[package], &[&server.url, MODEL, name]));
    }
    run("clients of Node", of_node(root, &server));
    let count = schemas.to_string();
    let arguments: [&str; 3] = [&server.url, MODEL, &count];
    run("random schemas", tool(root, "schemas", "schemas", &SCHEMAS, &arguments));
    let folder = root.join("docs/kubernetes").display().to_string();
    let arguments: [&str; 2] = [&folder, &server.url];
    run("manifests", tool(root, "manifests", "manifests", &MANIFESTS, &arguments));
    run("routers", routers(root, [&server, &second]));
    drop((server, second));
    let server = Server::start(root, MODEL, SHORT_CONTEXT)?;
    run("schemathesis", schemathesis(root, &server, seconds));
    println!();
    for (name, good) in &steps {
        println!("{name}: {}", if *good { "as it should be" } else { "not as it should be" });
    }
    let failed = steps.iter().filter(|(_, good)| !good).count() as u64;
    Ok(Suite {
        package: "clearway_serve".to_owned(),
        target: "clients".to_owned(),
        failed,
        time: start.elapsed(),
        counts: vec![
            ("random schemas".to_owned(), schemas),
            ("schemathesis, s".to_owned(), seconds),
        ],
        ..Suite::default()
    })
}

/// A script of `tools/serve` in an environment.
fn tool(
    root: &Path,
    environment: &str,
    script: &str,
    packages: &[&str],
    arguments: &[&str],
) -> Result<Command> {
    let mut command = Command::new(program(&python(root, environment, packages)?, "python"));
    command.arg(root.join(format!("tools/serve/{script}.py"))).args(arguments);
    Ok(command)
}

fn clients(root: &Path, server: &Server) -> Result<Command> {
    tool(root, "clients", "clients", &CLIENTS, &[&server.url, MODEL])
}

fn of_node(root: &Path, server: &Server) -> Result<Command> {
    let node = node(root)?;
    let folder = packages_of_node(root, &node)?;
    let mut command = node.command("node");
    command.arg(folder.join("clients.mjs")).args([&server.url, MODEL]);
    Ok(command)
}

fn routers(root: &Path, servers: [&Server; 2]) -> Result<Command> {
    let litellm = program(&python(root, "litellm", &LITELLM)?, "litellm");
    let router = program(&python(root, "vllm-router", &ROUTER)?, "vllm-router");
    let mut command = Command::new("python3");
    command.arg(root.join("tools/serve/routers.py")).args([litellm, router]).arg(MODEL);
    command.args(servers.map(|server| &server.url));
    Ok(command)
}

/// Random requests by `/openapi.json`: no 5xx, no answer that is not as the document says, no wrong request accepted.
fn schemathesis(root: &Path, server: &Server, seconds: u64) -> Result<Command> {
    const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                          response_schema_conformance,negative_data_rejection,unsupported_method";
    let folder = python(root, "schemathesis", &SCHEMATHESIS)?;
    let mut command = Command::new(program(&folder, "schemathesis"));
    command.arg("run").arg(format!("{}/openapi.json", server.url));
    command.args(["--phases", "coverage,fuzzing", "--checks", CHECKS, "--request-timeout", "120"]);
    let time = seconds.to_string();
    command.args(["--max-time", &time, "--no-color", "--suppress-health-check", "all"]);
    command.args(["--seed", &crate::seed()?.to_string()]).current_dir(&folder);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_soak_has_a_small_share() {
        assert_eq!(Extent::share(20_000, 20_000), Extent::FULL);
        assert_eq!(Extent::share(2_000, 20_000), Extent { schemas: 100, seconds: 60 });
        assert_eq!(Extent::share(1, 20_000), Extent { schemas: 20, seconds: 20 });
    }
}
