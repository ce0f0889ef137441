//! The page at `/`: one file that needs nothing else.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

const PAGE: &str = include_str!("../../page/page.html");
const STYLE: &str = include_str!("../../page/style.css");
const SCRIPTS: [&str; 3] = [
    include_str!("../../page/markdown.js"),
    include_str!("../../page/chat.js"),
    include_str!("../../page/status.js"),
];

/// The page.
pub async fn page() -> Response<Body> {
    let mut response = Response::new(Body::from(text()));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn text() -> String {
    PAGE.replace("/*style*/", STYLE).replace("/*script*/", &SCRIPTS.concat())
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn the_page_is_whole_and_asks_nobody_else() {
        let page = text();
        for mark in ["/*style*/", "/*script*/", "http://", " src=", "@import", "innerHTML"] {
            assert!(!page.contains(mark), "{mark}");
        }
        // The one in a pattern that finds links.
        assert_eq!(page.matches("https").count(), 1);
        assert!(page.contains("default-src 'none'"));
    }
}
