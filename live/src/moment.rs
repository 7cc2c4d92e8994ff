//! Moments as RFC 3339 writes them: as engines do, and in UTC and whole seconds as we do.

/// Seconds of a day.
const DAY: i64 = 86_400;

/// A moment since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    seconds: i64,
    nanos: u32,
}

impl Moment {
    /// The moment in `2026-11-20T18:32:09.123456789Z`, or with an offset such as `+01:00`.
    ///
    /// `None` also for the year 1 and before 1970, by which engines say "never".
    pub(crate) fn parse(text: &str) -> Option<Self> {
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
        let seconds = days(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
        Some(Self { seconds, nanos: digits.parse().ok()? })
    }

    /// Microseconds: fine enough to tell which container is newer, and exact in a JSON number.
    pub(crate) fn micros(self) -> i64 {
        self.seconds * 1_000_000 + i64::from(self.nanos / 1000)
    }

    /// In the form in which an engine is told since when events are wanted.
    pub(crate) fn since(self) -> String {
        format!("{}.{:09}", self.seconds, self.nanos)
    }
}

/// The moment this many seconds after the beginning of 1970.
pub(crate) fn write(unix: i64) -> String {
    let (days, seconds) = (unix.div_euclid(DAY), unix.rem_euclid(DAY));
    // Days are counted from the first of March of the year 0, so that a leap day is the last one of its year.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The seconds from the beginning of 1970 to a moment that [`write`] wrote; `None` for anything else.
pub(crate) fn read(text: &str) -> Option<i64> {
    let unix = Moment::parse(text)?.seconds;
    // What is no moment, such as the 31st of February, or has another form is written otherwise.
    (write(unix) == text).then_some(unix)
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
    use proptest::prelude::*;

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

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_199_999, "2026-11-20T18:39:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!((write(unix).as_str(), read(text)), (text, Some(unix)));
        }
        for text in [
            "",
            "now",
            "2026-02-30T00:00:00Z",
            "2026-11-20T18:39:60Z",
            "2026-11-20 18:39:59Z",
            "2026-11-20T18:39:59+01:00",
            "+026-11-20T18:39:59Z",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(unix in 0..250_000_000_000_i64) {
            prop_assert_eq!(read(&write(unix)), Some(unix));
        }
    }
}
