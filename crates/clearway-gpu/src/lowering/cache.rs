//! Compiled kernels on disk. Losing the cache costs time and nothing else, so nothing here fails: a
//! file that is broken, foreign or cannot be written is as good as none.

use std::path::PathBuf;

use crate::cache_folder;

/// First bytes of every file: name and version of the format.
const MAGIC: [u8; 8] = *b"clearwy1";

/// A folder of checked files.
pub(crate) struct DiskCache {
    root: Option<PathBuf>,
}

impl DiskCache {
    /// `kernels` in the user's [`cache_folder`]; a cache that keeps nothing if there is none or it is not wanted.
    pub(crate) fn open(enabled: bool) -> Self {
        let root = enabled.then(|| cache_folder().ok()).flatten();
        Self { root: root.map(|folder| folder.join("kernels")) }
    }

    /// What was stored under this name.
    pub(crate) fn load(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.path(kind, name)?).ok()?;
        let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
        let (sum, data) = rest.split_at_checked(16)?;
        (magic == MAGIC && sum == fnv(data).to_le_bytes()).then(|| data.to_vec())
    }

    /// Replaces what is stored under this name, whole or not at all.
    pub(crate) fn store(&self, kind: &str, name: &str, data: &[u8]) {
        let Some(path) = self.path(kind, name) else { return };
        let Some(folder) = path.parent() else { return };
        let unique = std::process::id();
        let part = folder.join(format!(".{name}.{unique}.part"));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(fnv(data).to_le_bytes());
        bytes.extend(data);
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&part, &bytes))
            .and_then(|()| std::fs::rename(&part, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
    }

    /// As [`load`](Self::load) under the hash of a long key.
    pub(crate) fn load_hashed(&self, kind: &str, key: &str) -> Option<Vec<u8>> {
        self.load(kind, &format!("{:032x}", fnv(key.as_bytes())))
    }

    /// As [`store`](Self::store) under the hash of a long key.
    pub(crate) fn store_hashed(&self, kind: &str, key: &str, data: &[u8]) {
        self.store(kind, &format!("{:032x}", fnv(key.as_bytes())), data);
    }

    fn path(&self, kind: &str, name: &str) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join(kind).join(name))
    }
}

/// FNV-1a with 128 bits: stable across versions of everything, and two kernels never share one.
fn fnv(bytes: &[u8]) -> u128 {
    let basis = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(basis, |hash: u128, &byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(fnv(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn a_broken_file_is_as_good_as_none_and_is_replaced() {
        let root = std::env::temp_dir().join(format!("clearway-cache-{}", std::process::id()));
        let cache = DiskCache { root: Some(root.clone()) };
        assert_eq!(cache.load("spirv", "k"), None);
        cache.store("spirv", "k", b"words");
        assert_eq!(cache.load("spirv", "k").unwrap(), b"words");
        let path = root.join("spirv/k");
        let whole = std::fs::read(&path).unwrap();
        for broken in [&whole[..whole.len() - 1], &whole[..10], b"", b"clearwy0"] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(cache.load("spirv", "k"), None);
        }
        let mut flipped = whole;
        *flipped.last_mut().unwrap() ^= 1;
        std::fs::write(&path, flipped).unwrap();
        assert_eq!(cache.load("spirv", "k"), None);
        cache.store("spirv", "k", b"again");
        assert_eq!(cache.load("spirv", "k").unwrap(), b"again");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cache = DiskCache { root: None };
        cache.store("spirv", "k", b"words");
        assert_eq!(cache.load("spirv", "k"), None);
    }
}
