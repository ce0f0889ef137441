//! How much memory was used, and bytes for people.

use clearway_llm::engine::Bytes;

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A number of bytes as people write it: `8G`, `512MiB`, `1000`. Units are powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = match unit.strip_suffix("iB").unwrap_or(unit) {
        "" if unit.is_empty() => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return Err(EXPECTED.into()),
    };
    let number: u64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
    match number.checked_mul(1 << (10 * power)) {
        None | Some(0) => Err(EXPECTED.into()),
        Some(bytes) => Ok(bytes),
    }
}

const EXPECTED: &str = "it is a number of bytes such as 8G, 512M or 8589934592";

/// Most memory this process had at once, where the system says.
pub fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("3K", 3072),
            ("512M", 512 << 20),
            ("8G", 8 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for odd in ["", "0", "0G", "G", "8g", "8GB", "-1", "1.5G", "8 G", "iB", "8iB", "99999999T"]
        {
            assert!(parse(odd).is_err(), "{odd}");
        }
    }
}
