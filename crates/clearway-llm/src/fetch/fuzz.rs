//! What a hub may answer, tried by the fuzz targets: nothing of it leads outside the cache or to another protocol.

use std::path::{Component, Path};

use super::address::Address;
use super::http::content_range;
use super::hub::{Repository, choose};
use super::name::ModelName;

const HUB: &str = "https://hub.example:8443/prefix/file?x=1";

/// Reads the bytes as a description of a repository, a redirect, a range and a name, separated by zero bytes. Says
/// whether the description names a model.
pub fn fuzz_hub(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut parts = text.split('\0');
    let mut part = || parts.next().unwrap_or_default();
    let found = description(part());
    redirect(part());
    if let Some((first, Some(total))) = content_range(part()) {
        let again = content_range(&format!("bytes {first}-0/{total}"));
        assert_eq!(again, Some((first, Some(total))));
    }
    if let Ok(ModelName::Hub(name)) = part().parse() {
        assert_inside(&name.user);
        assert_inside(&name.repo);
        assert_eq!(name.to_string().parse::<ModelName>().ok(), Some(ModelName::Hub(name)));
    }
    found
}

fn description(text: &str) -> bool {
    let Ok(repository) = serde_json::from_str::<Repository>(text) else { return false };
    let files: Vec<&str> = repository.siblings.iter().map(|file| &*file.rfilename).collect();
    let mut found = false;
    for wanted in [None, Some("Q8_0"), Some("m.gguf")] {
        for file in choose(&files, wanted).unwrap_or_default() {
            assert_inside(file);
            found = true;
        }
    }
    found
}

/// A name that is used as a path must not leave the folder it is joined to.
fn assert_inside(name: &str) {
    let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
    assert!(!name.is_empty() && Path::new(name).components().all(normal), "{name:?}");
}

fn redirect(location: &str) {
    let Some(hub) = Address::parse(HUB) else { return };
    let Some(target) = hub.join(location) else { return };
    let scheme = target.as_str().split("://").next().unwrap_or_default().to_ascii_lowercase();
    assert_eq!(scheme == "https", target.is_https(), "{target}");
    assert!(scheme == "https" || scheme == "http", "{target}");
    if hub.is_server_of(&target) {
        let text = target.as_str().to_ascii_lowercase();
        assert!(text.starts_with("https://hub.example:8443"), "{target} would get the token");
    }
}
