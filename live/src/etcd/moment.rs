//! Moments as RFC 3339 writes them, in UTC and whole seconds: `2026-11-20T18:00:00Z`.

/// Seconds of a day.
const DAY: i64 = 86_400;

/// The moment this many seconds after the beginning of 1970.
pub(super) fn write(unix: i64) -> String {
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
pub(super) fn read(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|octet| octet.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let year_of_march = year - i64::from(month <= 2);
    let (era, year_of_era) = (year_of_march.div_euclid(400), year_of_march.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let unix = (era * 146_097 + of_era - 719_468) * DAY + hour * 3600 + minute * 60 + second;
    // What is no moment, such as the 31st of February, is written otherwise.
    (write(unix) == text).then_some(unix)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
