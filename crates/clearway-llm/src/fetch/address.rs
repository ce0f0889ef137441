//! Addresses of servers: which are the same one, and where a redirect leads.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

/// An `http` or `https` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    text: String,
    https: bool,
    host: String,
    port: u16,
}

impl Address {
    /// Reads an address; `None` if it has another scheme, names no host or carries a password.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.split('#').next()?;
        let uri: Uri = text.parse().ok()?;
        let https = match uri.scheme_str()?.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" if https => 443,
            "" => 80,
            // As a number is written, and in no other way: `+8443` is no port.
            written => authority.port_u16().filter(|port| written == format!(":{port}"))?,
        };
        Some(Self {
            text: text.to_owned(),
            https,
            host: authority.host().to_ascii_lowercase(),
            port,
        })
    }

    /// Where a `Location` leads that this address answered with.
    pub fn join(&self, location: &str) -> Option<Self> {
        let (scheme, rest) = self.text.split_once("://")?;
        let authority = rest.split(['/', '?']).next()?;
        let has_scheme = |text: &str| {
            let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
            let plain = |c: char| c.is_ascii_alphanumeric() || ['+', '-', '.'].contains(&c);
            !scheme.is_empty() && scheme.chars().all(plain)
        };
        if has_scheme(location) {
            return Self::parse(location);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("{scheme}:{location}"));
        }
        if location.starts_with('/') {
            return Self::parse(&format!("{scheme}://{authority}{location}"));
        }
        let path = rest[authority.len()..].split('?').next()?;
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        Self::parse(&format!("{scheme}://{authority}{folder}/{location}"))
    }

    pub fn is_https(&self) -> bool {
        self.https
    }

    /// Whether nothing leaves this machine on the way there.
    pub fn is_loopback(&self) -> bool {
        let ip = self.host.trim_start_matches('[').trim_end_matches(']');
        ip == "localhost" || ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }

    /// Whether both are one server: the same scheme, host and port, or the same host after a change from `http` to
    /// `https` on the usual ports.
    pub fn is_server_of(&self, target: &Self) -> bool {
        let same = (self.https, self.port) == (target.https, target.port);
        let upgraded = (self.port, target.port) == (80, 443) && !self.https && target.https;
        self.host == target.host && (same || upgraded)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn only_http_and_https_addresses_are_addresses() {
        for text in
            ["", "x", "/x", "ftp://h/x", "http://", "https://u:p@h/x", "file:///etc", "http://h h"]
        {
            assert_eq!(Address::parse(text), None, "{text}");
        }
        for port in ["+8443", "08443", "", "65536", "-1", "8443x"] {
            assert_eq!(Address::parse(&format!("https://h:{port}/x")), None, "{port}");
        }
        assert_eq!(address("HTTPS://H.example/x#y").as_str(), "HTTPS://H.example/x");
    }

    #[test]
    fn a_redirect_leads_where_the_specification_says() {
        let base = address("https://h:1/a/b?c=/d");
        for (location, expected) in [
            ("https://o/x", "https://o/x"),
            ("HTTP://o/x", "HTTP://o/x"),
            ("//o/x", "https://o/x"),
            ("/x?y", "https://h:1/x?y"),
            ("x", "https://h:1/a/x"),
            ("x/http://o", "https://h:1/a/x/http://o"),
        ] {
            assert_eq!(
                base.join(location).map(|a| a.text),
                Some(expected.to_owned()),
                "{location}"
            );
        }
        for location in ["file:///etc/passwd", "javascript:1", "http://u:p@o/x", "a b"] {
            assert_eq!(base.join(location), None, "{location}");
        }
        assert_eq!(address("http://h").join("x").map(|a| a.text), Some("http://h/x".into()));
    }

    #[test]
    fn a_server_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| address(a).is_server_of(&address(b));
        assert!(same("https://h/a", "https://H:443/b"));
        assert!(same("http://h:8/a", "http://h:8/b"));
        assert!(same("http://h/a", "https://h/b"));
        for (a, b) in [
            ("https://h/", "http://h/"),
            ("https://h/", "https://h:444/"),
            ("http://h:8/", "https://h/"),
            ("https://h/", "https://h.o/"),
            ("https://h.o/", "https://o/"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn loopback_is_this_machine() {
        for text in
            ["http://127.0.0.1:8/", "http://127.9.9.9/", "http://[::1]:8/", "http://LOCALHOST/"]
        {
            assert!(address(text).is_loopback(), "{text}");
        }
        for text in [
            "http://10.0.0.1/",
            "http://localhost.example/",
            "http://127.0.0.1.example/",
            "http://[::2]/",
        ] {
            assert!(!address(text).is_loopback(), "{text}");
        }
    }
}
