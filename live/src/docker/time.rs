//! Moments as engines write them (RFC 3339).

/// A moment since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    seconds: i64,
    nanos: u32,
}

impl Moment {
    /// The moment in `2026-11-20T18:32:09.123456789Z`, or with an offset such as `+01:00`.
    ///
    /// `None` also for the year 1 and before 1970, by which engines say "never".
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', 't'])?;
        let zone_at = time.find(['Z', 'z', '+', '-'])?;
        let (time, zone) = time.split_at(zone_at);
        let [year, month, day] = numbers(date, '-')?;
        let (whole, fraction) = time.split_once('.').unwrap_or((time, ""));
        let [hour, minute, second] = numbers(whole, ':')?;
        let fits = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !fits || hour > 23 || minute > 59 || second > 60 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let offset = match zone.split_at_checked(1)? {
            ("Z" | "z", "") => 0,
            (sign, offset) => {
                let [hours, minutes] = numbers(offset, ':')?;
                let seconds = hours * 3600 + minutes * 60;
                if sign == "-" { -seconds } else { seconds }
            }
        };
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
        Some(Self { seconds, nanos: digits.parse().ok()? })
    }

    /// Microseconds: fine enough to tell which container is newer, and exact in a JSON number.
    pub(super) fn micros(self) -> i64 {
        self.seconds * 1_000_000 + i64::from(self.nanos / 1000)
    }

    /// In the form in which an engine is told since when events are wanted.
    pub(super) fn since(self) -> String {
        format!("{}.{:09}", self.seconds, self.nanos)
    }
}

/// So many numbers of at most four digits with this character in between.
fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let parts = text.split(separator).map(|part| {
        let digits = (1..=4).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| digits)
    });
    parts.collect::<Option<Vec<i64>>>()?.try_into().ok()
}

/// Days from 1970-01-01 to a day of the Gregorian calendar, counted in years that begin in March, so that the day that
/// leap years have more is the last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_counted_from_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some("0.000000000")),
            ("2026-11-20T18:32:09.5Z", Some("1795199529.500000000")),
            ("2024-02-29T23:59:59.123456789Z", Some("1709251199.123456789")),
            ("2024-03-01T00:59:59+01:00", Some("1709251199.000000000")),
            ("2000-12-31T19:00:00-05:00", Some("978307200.000000000")),
            ("0001-01-01T00:00:00Z", None),
            ("2024-02-29 23:59:59Z", None),
            ("2024-02-29T23:59:59", None),
            ("2024-13-01T00:00:00Z", None),
            ("2024-01-01T00:00:00.x1Z", None),
            ("2024-01-01T00:00:00.999999999999Z", Some("1704067200.999999999")),
            ("99999-01-01T00:00:00Z", None),
            ("T", None),
            ("", None),
        ] {
            assert_eq!(Moment::parse(text).map(Moment::since).as_deref(), expected, "{text}");
        }
        assert_eq!(Moment::parse("1970-01-01T00:00:01.000002999Z").map(Moment::micros), Some(1_000_002));
    }
}
