//! How much memory was used, and bytes for people.

use clearway_llm::engine::Bytes;

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// Most memory this process had at once, where the system says.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
