//! How runs, events and payloads look outside: the words and the JSON that the command line and the API share.

mod payload;
mod run;
mod worker;

use time::OffsetDateTime;

pub(crate) use payload::{PayloadView, cut, escape_controls, full, one_line};
pub(crate) use run::*;
pub(crate) use worker::{SessionDetailView, SessionView, Standing, loaded};

/// A moment for people, in UTC to the second.
pub(crate) fn moment(at: OffsetDateTime) -> String {
    let at = at.to_offset(time::UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
}
