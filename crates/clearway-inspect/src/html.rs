//! The page: one file that needs nothing else.
//!
//! Markup, style and scripts are constants; the report goes in as JSON in a script element of a type that
//! no browser runs. Names come from files and users, so nothing of them is ever parsed as markup: in the
//! JSON every `<` is written as an escape, and the scripts put text into the page as text only.

use crate::error::Result;
use crate::report::Report;

const PAGE: &str = include_str!("../page/page.html");
const STYLE: &str = include_str!("../page/style.css");
const SCRIPTS: [&str; 9] = [
    include_str!("../page/base.js"),
    include_str!("../page/model.js"),
    include_str!("../page/table.js"),
    include_str!("../page/lanes.js"),
    include_str!("../page/schedule.js"),
    include_str!("../page/reasons.js"),
    include_str!("../page/arena.js"),
    include_str!("../page/compare.js"),
    include_str!("../page/main.js"),
];

impl Report {
    /// The report as JSON text, on one line.
    ///
    /// # Errors
    /// [`InspectError::Json`](crate::InspectError::Json).
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// The report as a page that works from disk, without network.
    ///
    /// # Errors
    /// [`InspectError::Json`](crate::InspectError::Json).
    pub fn to_html(&self) -> Result<String> {
        let data = script_safe(&self.to_json()?);
        let scripts = SCRIPTS.concat();
        let mut page = String::with_capacity(PAGE.len() + STYLE.len() + scripts.len() + data.len());
        let mut rest = PAGE;
        for (mark, text) in [("/*style*/", STYLE), ("/*data*/", &*data), ("/*script*/", &*scripts)]
        {
            if let Some((before, after)) = rest.split_once(mark) {
                page.push_str(before);
                page.push_str(text);
                rest = after;
            }
        }
        page.push_str(rest);
        Ok(page)
    }
}

/// JSON that cannot end the script element it stands in, nor open a comment there. The characters can only
/// stand inside strings, where an escape means the same.
fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}
