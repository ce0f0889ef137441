//! The time, as logs and answers write it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearway_llm::text::Date;

/// Seconds since 1970.
pub fn unix() -> u64 {
    since_1970().as_secs()
}

/// Today, in UTC.
pub fn today() -> Date {
    let (year, month, day) = civil(unix() / 86_400);
    Date { year: year.min(9999) as u16, month: month as u8, day: day as u8 }
}

/// The time in UTC with milliseconds, as RFC 3339 has it.
pub fn stamp() -> String {
    let now = since_1970();
    let (seconds, millis) = (now.as_secs(), now.subsec_millis());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Year, month and day of a number of days after 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last one.
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_have_their_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_773), (2026, 11, 16));
    }
}
