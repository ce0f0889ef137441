//! The page as a file: complete, and with nothing in it that a name could break. What it does when it is
//! used is the browser test's.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;

use clearway::{DType, Ops, Recorder};
use common::{graph, json, report};

#[test]
fn the_page_holds_the_report_and_needs_nothing_else() {
    let report = report(&graph());
    let page = report.to_html().unwrap();
    let data = page.split_once("id=\"report\">").unwrap().1.split_once("</script>").unwrap().0;
    assert_eq!(json(data), json(&report.to_json().unwrap()));
    for mark in ["/*style*/", "/*data*/", "/*script*/", "http://", "https://", " src=", "@import"] {
        let allowed = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!allowed.contains(mark), "{mark}");
    }
    assert!(page.contains("default-src 'none'"), "the browser is told to fetch nothing");
}

#[test]
fn no_name_ends_the_script_it_stands_in() {
    let evil = "</script><script>alert(1)</script><!--\u{2028}/*script*//*data*/";
    let mut pass = Recorder::default();
    let x = pass.external(evil, DType::F32, &[1, 64]).unwrap();
    pass.set_label(evil);
    let y = pass.silu(x).unwrap();
    pass.mark_output(y).unwrap();
    let mut report = report(&pass.into_parts().0);
    evil.clone_into(&mut report.name);
    let page = report.to_html().unwrap();
    let plain = common::report(&graph()).to_html().unwrap();
    for mark in ["</script>", "<script", "<!--", "\u{2028}"] {
        assert_eq!(page.matches(mark).count(), plain.matches(mark).count(), "{mark}");
    }
    let data = page.split_once("id=\"report\">").unwrap().1.split_once("</script>").unwrap().0;
    assert_eq!(json(data)["name"], evil);
    assert_eq!(json(data)["dispatch_list"][0]["label"], evil);
}
