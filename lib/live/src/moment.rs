//! Times as RFC 3339 writes them: as engines do, and in UTC and whole seconds as we do.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A time that an engine states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(OffsetDateTime);

impl Moment {
    /// The time in `2026-11-20T18:32:09.123456789Z`, or with an offset such as `+01:00`.
    ///
    /// `None` also for the year 1 and before 1970, by which engines say "never".
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let time = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        // Any character may stand between date and time for the parser.
        (time.year() >= 1970 && text.contains(['T', 't'])).then_some(Self(time))
    }

    /// Microseconds since 1970: fine enough to order containers by age, and exact in a JSON number.
    pub(crate) fn micros(self) -> i64 {
        self.0.unix_timestamp() * 1_000_000 + i64::from(self.0.microsecond())
    }

    /// The form in which an engine takes the time from which events are wanted.
    pub(crate) fn since(self) -> String {
        format!("{}.{:09}", self.0.unix_timestamp(), self.0.nanosecond())
    }
}

/// The time this many seconds after the beginning of 1970; `None` after the year 9999.
pub fn write(unix: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(unix).ok()?.format(&Rfc3339).ok()
}

/// The seconds from the beginning of 1970 to a time that [`write`] wrote; `None` for anything else.
pub fn read(text: &str) -> Option<i64> {
    let unix = Moment::parse(text)?.0.unix_timestamp();
    (write(unix).as_deref() == Some(text)).then_some(unix)
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
            assert_eq!((write(unix).as_deref(), read(text)), (Some(text), Some(unix)));
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
            prop_assert_eq!(read(&write(unix).unwrap()), Some(unix));
        }
    }
}
