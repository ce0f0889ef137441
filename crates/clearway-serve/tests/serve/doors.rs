//! Who gets in: keys, hosts, origins, sockets.

use serde_json::json;

use crate::server::{Running, Setup};

const KEY: &str = "sk-4f9a8b7c6d5e";

#[test]
fn with_a_key_nobody_gets_in_without_it() {
    let mut setup = Setup::default();
    setup.config.keys = vec!["another-key".into(), KEY.into()];
    let server = setup.start();
    server.wait();
    let status =
        |headers: &[(&str, &str)], path: &str| server.client.send("GET", path, headers, b"").status;
    let bearer = |key: &str| format!("Bearer {key}");
    for path in
        ["/v1/models", "/metrics", "/slots", "/openapi.json", "/nothing", "/v1/chat/completions"]
    {
        assert_eq!(status(&[], path), 401, "{path}");
    }
    for wrong in [
        "",
        " ",
        "x",
        &KEY[..5],
        &format!("{KEY}x"),
        &format!("x{KEY}"),
        &KEY.to_uppercase(),
        "*",
        "null",
    ] {
        assert_eq!(status(&[("Authorization", &bearer(wrong))], "/v1/models"), 401, "{wrong}");
        assert_eq!(status(&[("X-Api-Key", wrong)], "/v1/models"), 401, "{wrong}");
    }
    assert_eq!(status(&[("Authorization", KEY)], "/v1/models"), 401, "without its scheme");
    assert_eq!(status(&[("Authorization", &bearer("x")), ("X-Api-Key", KEY)], "/v1/models"), 401);
    assert_eq!(status(&[("Authorization", &bearer(KEY))], "/v1/models"), 200);
    assert_eq!(status(&[("Authorization", &format!("bearer {KEY}"))], "/v1/models"), 200);
    assert_eq!(status(&[("X-Api-Key", "another-key")], "/v1/models"), 200);
    assert_eq!(status(&[], "/health"), 200, "probes need no key");
    let refused = server.client.post("/v1/messages", &json!({}));
    assert_eq!(
        (refused.status, &refused.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
}

#[test]
fn names_that_suddenly_mean_this_machine_are_refused() {
    let server = Running::new();
    let status = |host: &str| server.client.send("GET", "/health", &[("Host", host)], b"").status;
    for host in
        ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.0.1:8080", ""]
    {
        assert_eq!(status(host), 403, "{host}");
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:8080"] {
        assert_eq!(status(host), 200, "{host}");
    }
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let mut setup = Setup::default();
    setup.config.origins = vec!["https://good.example".into()];
    let server = setup.start();
    server.wait();
    let own = format!("http://{}", server.client.address);
    let post = |origin: &str| {
        let headers = [("Origin", origin), ("Content-Type", "text/plain")];
        server.client.send("POST", "/tokenize", &headers, br#"{"content":"a"}"#)
    };
    for origin in
        ["https://evil.example", "null", "https://good.example.evil.example", "http://good.example"]
    {
        let answer = post(origin);
        assert_eq!(answer.status, 403, "{origin}");
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    assert_eq!(post(&own).status, 200, "the server's own page");
    let good = post("https://good.example");
    assert_eq!(
        (good.status, good.header("access-control-allow-origin")),
        (200, Some("https://good.example"))
    );
    let asked = [("Origin", "https://good.example"), ("Access-Control-Request-Method", "POST")];
    let preflight = server.client.send("OPTIONS", "/v1/chat/completions", &asked, b"");
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some("https://good.example"))
    );
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("authorization"));
}

#[cfg(unix)]
#[test]
fn a_socket_in_the_file_system_serves_and_goes_away() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    let path = std::env::temp_dir().join(format!("clearway-serve-{}.sock", std::process::id()));
    // One that a killed server left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut setup = Setup::default();
    setup.config.address = clearway_serve::Address::Unix(path.clone());
    let server = setup.start();
    let get = || {
        let mut stream = UnixStream::connect(&path).ok()?;
        server.client.write(&mut stream, "GET", "/health", &[("Host", "x")], b"");
        crate::client::read(stream).map(|answer| answer.status)
    };
    crate::server::until("ready", || get() == Some(200));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    server.end();
    assert!(!path.exists());
}
