//! `strftime_now(format)`: the engine's local time, from the time that the caller passes.

use minijinja::{Error, ErrorKind, Value};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The function for one render.
pub(super) fn function(now_unix_ms: u64, utc_offset_seconds: i32) -> Value {
    let seconds = i64::try_from(now_unix_ms / 1000).unwrap_or(i64::MAX / 2) + i64::from(utc_offset_seconds);
    Value::from_function(move |format: &str| {
        strftime(format, seconds)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "unknown time format"))
    })
}

/// The C locale's `strftime` of seconds since 1970, local; none for a directive that is not known.
fn strftime(format: &str, seconds: i64) -> Option<String> {
    let days = seconds.div_euclid(86_400);
    let second_of_day = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let day_name = *DAYS.get((days + 4).rem_euclid(7) as usize)?;
    let month_name = *MONTHS.get(month as usize - 1)?;
    let hour12 = (hour + 11) % 12 + 1;
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next()?;
        // glibc: no padding.
        let bare = directive == '-';
        if bare {
            directive = characters.next()?;
        }
        let number =
            |value: i64, width: usize| if bare { value.to_string() } else { format!("{value:0width$}") };
        let part = match directive {
            'Y' => year.to_string(),
            'y' => number(year.rem_euclid(100), 2),
            'm' => number(month, 2),
            'd' => number(day, 2),
            'e' if bare => day.to_string(),
            'e' => format!("{day:2}"),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(days - days_before(year) + 1, 3),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name.get(..3)?.to_owned(),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name.get(..3)?.to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'D' => format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
            // `datetime.now()` has no zone.
            'Z' | 'z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
        text.push_str(&part);
    }
    Some(text)
}

/// Year, month and day of a day since 1970 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days from 1970 to the first of January.
fn days_before(year: i64) -> i64 {
    let year = year - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    // Expected: Python 3.11, datetime.fromtimestamp(t, timezone.utc).strftime(format).
    #[test]
    fn prints_dates_as_python_does() {
        let all = "%Y-%m-%d %H:%M:%S %y %j %a %A %b %B %e %-d %I %p %%";
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 70 001 Thu Thursday Jan January  1 1 12 AM %"),
            (951_827_696, "2000-02-29 12:34:56 00 060 Tue Tuesday Feb February 29 29 12 PM %"),
            (1_735_689_599, "2024-12-31 23:59:59 24 366 Tue Tuesday Dec December 31 31 11 PM %"),
            (4_107_542_400, "2100-03-01 00:00:00 00 060 Mon Monday Mar March  1 1 12 AM %"),
        ] {
            assert_eq!(strftime(all, seconds).as_deref(), Some(expected));
        }
        assert_eq!(strftime("%Q", 0), None);
        assert_eq!(strftime("%", 0), None);
    }
}
