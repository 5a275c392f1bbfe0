//! Why a command failed: what it prints, and the code that it ends with.

use std::io;
use std::process::ExitCode;

use continuum_schema::event::Failure;
use continuum_schema::{Error as SchemaError, PayloadError, TextError};
use serde::Serialize;
use uuid::Uuid;

use crate::dev::DevError;
use crate::view::FailureView;
use crate::{ClientError, ConfigError};

/// What sort of failure, as a word for programs and an exit code for shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    RunFailed,
    RunCancelled,
    Usage,
    NotFound,
    KeyConflict,
    RunEnded,
    Unavailable,
    DatabaseVersion,
    DatabaseRefused,
    TimedOut,
    NotDrained,
    Interrupted,
    /// Whoever read our output has gone away, for example `head`: nobody is left to be told.
    OutputClosed,
}

/// The exit codes with their meaning, as help and documentation print them.
pub(super) const EXIT_CODES: [(u8, &str); 9] = [
    (0, "done"),
    (1, "the run failed or was cancelled"),
    (2, "wrong usage or bad input; nothing was done"),
    (3, "there is no such run or worker"),
    (
        4,
        "conflict: the key names another run, or the run has ended",
    ),
    (
        5,
        "Postgres, NATS or the worker is unavailable, or the database is at another version",
    ),
    (6, "the time given with --timeout has passed"),
    (
        7,
        "a worker has drained, but could not give back everything; others find it",
    ),
    (130, "stopped at once by a second signal"),
];

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::RunFailed => "run_failed",
            Self::RunCancelled => "run_cancelled",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::KeyConflict => "key_conflict",
            Self::RunEnded => "run_ended",
            Self::Unavailable => "unavailable",
            Self::DatabaseVersion => "database_version",
            Self::DatabaseRefused => "database_refused",
            Self::TimedOut => "timed_out",
            Self::NotDrained => "not_drained",
            Self::Interrupted => "interrupted",
            Self::OutputClosed => "output_closed",
        }
    }

    fn exit_code(self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::RunFailed | Self::RunCancelled => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::KeyConflict | Self::RunEnded => 4,
            Self::Unavailable | Self::DatabaseVersion | Self::DatabaseRefused => 5,
            Self::TimedOut => 6,
            Self::NotDrained => 7,
            Self::Interrupted => 130,
        }
    }
}

/// A failed command.
#[derive(Debug)]
pub(super) struct CliError {
    code: Code,
    message: String,
    run_id: Option<Uuid>,
    failure: Option<Box<Failure>>,
}

/// The error as a JSON document.
#[derive(Serialize)]
struct Document<'e> {
    error: Body<'e>,
}

#[derive(Serialize)]
struct Body<'e> {
    code: &'static str,
    message: &'e str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureView>,
}

impl CliError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            run_id: None,
            failure: None,
        }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Says which run it is about, for programs.
    pub(super) fn of_run(mut self, run_id: Uuid) -> Self {
        self.run_id.get_or_insert(run_id);
        self
    }

    /// The library speaks of `continuum migrate`; the user's own binary has the command too.
    pub(super) fn named_after(mut self, program: &str) -> Self {
        self.message = self.message.replace("`continuum ", &format!("`{program} "));
        self
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code.exit_code())
    }

    pub(super) fn is_silent(&self) -> bool {
        self.code == Code::OutputClosed
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// One line of JSON.
    pub(super) fn to_json(&self) -> String {
        let document = Document {
            error: Body {
                code: self.code.name(),
                message: &self.message,
                exit_code: self.code.exit_code(),
                run_id: self.run_id,
                failure: self.failure.as_deref().map(FailureView::new),
            },
        };
        serde_json::to_string(&document).expect("the document holds text and numbers only")
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        let message = error.to_string();
        match error {
            ClientError::NotFound(_) => Self::new(Code::NotFound, message),
            ClientError::Ended(run_id) => Self::new(Code::RunEnded, message).of_run(run_id),
            ClientError::Conflict { run_id, .. } => {
                Self::new(Code::KeyConflict, message).of_run(run_id)
            }
            ClientError::Failed(failure) => Self {
                failure: Some(Box::new(failure.into())),
                ..Self::new(Code::RunFailed, message)
            },
            ClientError::Cancelled(_) => Self::new(Code::RunCancelled, message),
            ClientError::TimedOut { run_id, .. } => {
                Self::new(Code::TimedOut, message).of_run(run_id)
            }
            ClientError::Invalid(_) | ClientError::TooLarge { .. } => Self::usage(message),
            ClientError::Unavailable(_) => Self::new(Code::Unavailable, message),
            ClientError::Database(error) => error.into(),
        }
    }
}

impl From<SchemaError> for CliError {
    fn from(error: SchemaError) -> Self {
        let message = error.to_string();
        match error {
            SchemaError::Version(_) => Self::new(Code::DatabaseVersion, message),
            SchemaError::Config(_) => Self::usage(message),
            SchemaError::Damaged(_) | SchemaError::Refused(_) | SchemaError::Stale(_) => {
                Self::new(Code::DatabaseRefused, message)
            }
            SchemaError::SessionClosed => Self::new(Code::Unavailable, message),
            error => ClientError::from(error).into(),
        }
    }
}

impl From<TextError> for CliError {
    fn from(error: TextError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<PayloadError> for CliError {
    fn from(error: PayloadError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<continuum_bus::ConfigError> for CliError {
    fn from(error: continuum_bus::ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<DevError> for CliError {
    fn from(error: DevError) -> Self {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        Self::new(
            Code::Unavailable,
            format!("{error}{}", cause.unwrap_or_default()),
        )
    }
}

/// Errors of writing the output; reads say themselves what they were about.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Code::OutputClosed, "nobody reads the output"),
            _ => Self::new(
                Code::Unavailable,
                format!("the output can't be written: {error}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_that_a_command_can_end_with_is_documented() {
        for code in [
            Code::RunFailed,
            Code::RunCancelled,
            Code::Usage,
            Code::NotFound,
            Code::KeyConflict,
            Code::RunEnded,
            Code::Unavailable,
            Code::DatabaseVersion,
            Code::DatabaseRefused,
            Code::TimedOut,
            Code::NotDrained,
            Code::Interrupted,
            Code::OutputClosed,
        ] {
            assert!(
                EXIT_CODES
                    .iter()
                    .any(|(number, _)| *number == code.exit_code()),
                "{code:?}"
            );
        }
    }

    #[test]
    fn a_failed_run_keeps_its_failure_and_its_causes_in_json() {
        let failure = Failure {
            kind: "Declined".into(),
            message: "no".into(),
            retryable: false,
            details: None,
            causes: vec!["limit".into()],
        };
        let run_id = Uuid::nil();
        let error = CliError::from(ClientError::Failed(failure.into())).of_run(run_id);
        assert_eq!(
            error.to_json(),
            r#"{"error":{"code":"run_failed","message":"the run failed: Declined: no: limit","exit_code":1,"run_id":"00000000-0000-0000-0000-000000000000","failure":{"kind":"Declined","message":"no","retryable":false,"causes":["limit"]}}}"#
        );
    }

    #[test]
    fn the_command_to_run_is_that_of_the_program_at_hand() {
        let error = CliError::usage("run `continuum migrate`").named_after("orders");
        assert_eq!(error.message(), "run `orders migrate`");
    }
}
