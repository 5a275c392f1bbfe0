//! Faults on demand, for tests: dies, or loses an answer, at a chosen statement. In a release build nothing of this
//! exists.
//!
//! `CONTINUUM_FAULT=<noun>/<verb>:<when>:<n>` strikes at the n-th call of that statement in this process, from 1; *when*
//! is `before` (the process dies before the statement is sent), `after` (it dies when the statement has committed) or
//! `lost` (the statement has committed and its answer is lost). `CONTINUUM_FAULT_LOG=<file>` appends the name of each
//! statement that is called, so that a test can find every point there is.

#[cfg(not(debug_assertions))]
pub(crate) use off::{after, before};
#[cfg(debug_assertions)]
pub(crate) use on::{after, before};

#[cfg(not(debug_assertions))]
mod off {
    use crate::Error;

    #[inline]
    pub(crate) fn before(_statement: &'static str) {}

    #[inline]
    #[expect(clippy::unnecessary_wraps, reason = "a debug build loses answers here")]
    pub(crate) fn after(_statement: &'static str) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(debug_assertions)]
mod on {
    use std::io::Write as _;
    use std::str::FromStr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::Error;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum When {
        Before,
        After,
        Lost,
    }

    struct Fault {
        statement: String,
        when: When,
        call: u32,
        calls: AtomicU32,
    }

    impl FromStr for Fault {
        type Err = String;

        fn from_str(text: &str) -> Result<Self, String> {
            let wrong =
                || format!("CONTINUUM_FAULT={text:?} is not <noun>/<verb>:<before|after|lost>:<n>");
            let mut parts = text.split(':');
            let (Some(statement), Some(when), Some(call), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(wrong());
            };
            Ok(Self {
                statement: statement.to_owned(),
                when: match when {
                    "before" => When::Before,
                    "after" => When::After,
                    "lost" => When::Lost,
                    _ => return Err(wrong()),
                },
                call: call.parse().map_err(|_| wrong())?,
                calls: AtomicU32::new(0),
            })
        }
    }

    /// The fault of this process. A text that is none must not pass for a test that went well.
    fn fault() -> Option<&'static Fault> {
        static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
        FAULT
            .get_or_init(|| {
                let text = std::env::var("CONTINUUM_FAULT").ok()?;
                Some(
                    text.parse()
                        .unwrap_or_else(|wrong: String| panic!("{wrong}")),
                )
            })
            .as_ref()
    }

    pub(crate) fn before(statement: &'static str) {
        log(statement);
        let Some(fault) = fault().filter(|f| f.statement == statement) else {
            return;
        };
        let call = fault.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if fault.when == When::Before && call == fault.call {
            die();
        }
    }

    pub(crate) fn after(statement: &'static str) -> Result<(), Error> {
        let Some(fault) = fault().filter(|f| f.statement == statement) else {
            return Ok(());
        };
        match fault.when {
            When::After if fault.calls.load(Ordering::SeqCst) >= fault.call => die(),
            // Once only: `fetch_add` moves the count past the call.
            When::Lost
                if fault
                    .calls
                    .compare_exchange(
                        fault.call,
                        fault.call + 1,
                        Ordering::SeqCst,
                        Ordering::SeqCst,
                    )
                    .is_ok() =>
            {
                let lost = std::io::Error::other("the answer was lost (CONTINUUM_FAULT)");
                Err(Error::Unavailable(sqlx::Error::Io(lost)))
            }
            _ => Ok(()),
        }
    }

    /// Ends the process as kill -9 would: nothing is flushed, nothing is dropped.
    fn die() -> ! {
        std::process::abort()
    }

    fn log(statement: &str) {
        static LOG: OnceLock<Option<std::fs::File>> = OnceLock::new();
        let log = LOG.get_or_init(|| {
            let path = std::env::var_os("CONTINUUM_FAULT_LOG")?;
            std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)
                .ok()
        });
        if let Some(mut file) = log.as_ref() {
            // One write a line, so that lines of several threads don't mix.
            drop(file.write_all(format!("{statement}\n").as_bytes()));
        }
    }
}
