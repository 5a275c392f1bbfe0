//! Errors sorted by what the caller does next.

use uuid::Uuid;

/// What went wrong with a statement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres is away, overloaded, or answered too late: back off and try again. Whether a write took place is
    /// unknown.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// Somebody held a lock too long, or a deadlock was broken. Nothing was written: send the same again.
    #[error("Postgres asks to try again: {0}")]
    Contended(#[source] sqlx::Error),
    /// The worker's session was closed; whatever it owned belongs to others.
    #[error("the session is closed")]
    SessionClosed,
    /// An append claims what is not there: a stale activity attempt, or mail that is gone.
    #[error("refused: {0}")]
    Stale(String),
    /// There is no such run.
    #[error("there is no run {0}")]
    NotFound(String),
    /// The run has ended.
    #[error("run {0} has ended")]
    Ended(Uuid),
    /// The idempotency key names a run with another workflow or input.
    #[error("the key {key:?} names run {run_id}, which has another workflow or input")]
    KeyConflict {
        /// The key.
        key: String,
        /// The run that has it.
        run_id: Uuid,
    },
    /// The database is not at the version of this build.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The settings can't work.
    #[error("{0}")]
    Config(String),
    /// A row holds what no build of Continuum wrote.
    #[error("a row can't be read: {0}")]
    Damaged(String),
    /// Postgres refused the statement for another reason; trying again would not help.
    #[error("Postgres refused: {0}")]
    Refused(#[source] sqlx::Error),
}

/// How the database differs from what this build needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// It was never migrated.
    #[error("schema {schema:?} holds no Continuum tables; run `continuum migrate`")]
    Missing {
        /// The schema that was looked at.
        schema: String,
    },
    /// It is older than this build.
    #[error(
        "schema {schema:?} is at version {found}, this build needs {wanted}; run `continuum migrate`"
    )]
    Older {
        /// The schema.
        schema: String,
        /// Its newest migration.
        found: i64,
        /// The newest migration of this build.
        wanted: i64,
    },
    /// It is newer than this build can know.
    #[error(
        "schema {schema:?} is at version {found}, this build knows {wanted}; start a build of that version or later"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// Its newest migration.
        found: i64,
        /// The newest migration of this build.
        wanted: i64,
    },
}

impl Error {
    /// The same error once more, for each of several callers that shared a statement. What can't be copied is told by
    /// its text.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let text = |e: &sqlx::Error| sqlx::Error::Protocol(e.to_string());
        match self {
            Self::Unavailable(e) => Self::Unavailable(text(e)),
            Self::Contended(e) => Self::Contended(text(e)),
            Self::Refused(e) => Self::Refused(text(e)),
            Self::SessionClosed => Self::SessionClosed,
            Self::Stale(s) => Self::Stale(s.clone()),
            Self::NotFound(s) => Self::NotFound(s.clone()),
            Self::Ended(run) => Self::Ended(*run),
            Self::KeyConflict { key, run_id } => Self::KeyConflict {
                key: key.clone(),
                run_id: *run_id,
            },
            Self::Version(e) => Self::Version(e.clone()),
            Self::Config(s) => Self::Config(s.clone()),
            Self::Damaged(s) => Self::Damaged(s.clone()),
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Contended(_))
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else {
            return match error {
                sqlx::Error::Decode(_)
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::TypeNotFound { .. } => Self::Damaged(error.to_string()),
                sqlx::Error::Configuration(_) => Self::Config(error.to_string()),
                _ => Self::Unavailable(error),
            };
        };
        let code = database.code().unwrap_or_default();
        let message = database.message().to_owned();
        match code.as_ref() {
            "CTM01" => Self::NotFound(message),
            "CTM02" => Self::Refused(error),
            "CTM03" => Self::SessionClosed,
            "CTM09" => Self::Stale(message),
            // deadlock, serialization, lock time-out, statement time-out: rolled back as a whole
            "40P01" | "40001" | "55P03" | "57014" => Self::Contended(error),
            // a server that became a replica, shuts down, starts up, or has no connection left
            "25006" | "57P01" | "57P02" | "57P03" | "53300" => Self::Unavailable(error),
            // the server closed a connection that was idle, or whose transaction was idle or took too long: rolled back
            "25P03" | "25P04" | "57P05" => Self::Unavailable(error),
            code if code.starts_with("08") || code.starts_with("58") || code.starts_with("53") => {
                Self::Unavailable(error)
            }
            // The primary key caught a repetition that is still under way elsewhere: the next try sees its outcome.
            "23505" => Self::Contended(error),
            _ => Self::Refused(error),
        }
    }
}
