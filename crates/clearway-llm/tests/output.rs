//! Output files of a process that must end at once. Nothing can be written afterwards, so the test has a process of its own.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::io::Write;

use clearway_llm::output::{OutputFile, discard_unfinished};

#[test]
fn a_process_that_ends_leaves_no_unfinished_file() {
    let folder = std::env::temp_dir().join(format!("clearway-discard-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("old"), "old").unwrap();
    let mut file = OutputFile::create(&folder.join("old")).unwrap();
    file.write_all(b"new").unwrap();
    let names = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(names(), 2);
    discard_unfinished();
    assert_eq!(names(), 1);
    assert_eq!(std::fs::read(folder.join("old")).unwrap(), b"old");
    // A thread that would complete it waits; the end of the process does not.
    std::thread::spawn(move || file.complete());
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(names(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}
