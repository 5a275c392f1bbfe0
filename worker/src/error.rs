//! The errors that authors write and see, and how they cross the journal.
//!
//! Every error becomes a [`Failure`]: a kind (a word that code may match on), a message, and the chain of causes as
//! strings. [`ActivityError`] and [`WorkflowError`] take any error through `?`; for that they don't implement
//! [`std::error::Error`] themselves. [`RunFailure`], which clients get, does.

use std::error::Error as StdError;
use std::fmt;

use continuum_schema::event::Failure;
use continuum_schema::{Payload, PayloadError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The kinds that Continuum gives itself. Authors may use others, in the same spelling.
pub mod kind {
    /// Any error that came through `?` without a kind of its own.
    pub const ERROR: &str = "Error";
    /// An attempt took longer than it may, or the author's own time limit passed.
    pub const TIMED_OUT: &str = "TimedOut";
    /// The run was asked to stop.
    pub const CANCELLED: &str = "Cancelled";
    /// The worker was lost in the middle of the last attempt; nobody knows how far it came.
    pub const WORKER_LOST: &str = "WorkerLost";
    /// The author's code panicked.
    pub const PANICKED: &str = "Panicked";
    /// A value did not decode as the type that the code wants.
    pub const DECODE: &str = "Decode";
    /// A value could not be encoded.
    pub const ENCODE: &str = "Encode";
    /// A value is larger than the journal takes.
    pub const OVERSIZE: &str = "Oversize";
}

/// The most causes that are kept of one error. A source chain written by hand may be cyclic.
const CAUSES_MAX: usize = 32;

/// Splits an error into its message and its chain of causes.
fn message_and_causes(error: &(dyn StdError + 'static)) -> (String, Vec<String>) {
    let first: Option<&dyn StdError> = error.source();
    let causes = std::iter::successors(first, |cause| (*cause).source())
        .take(CAUSES_MAX)
        .map(ToString::to_string)
        .collect();
    (error.to_string(), causes)
}

/// Prints `Kind: message: cause: cause`, without the kind where it says nothing.
fn write_failure(failure: &Failure, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if failure.kind != kind::ERROR {
        write!(f, "{}: ", failure.kind)?;
    }
    f.write_str(&failure.message)?;
    failure
        .causes
        .iter()
        .try_for_each(|cause| write!(f, ": {cause}"))
}

/// What all three error types tell of the [`Failure`] that they hold.
macro_rules! failure_accessors {
    ($type:ident) => {
        impl $type {
            /// What sort of error: one of [`kind`] or the author's own word.
            #[must_use]
            pub fn kind(&self) -> &str {
                &self.0.kind
            }

            /// What happened, for people, without the causes.
            #[must_use]
            pub fn message(&self) -> &str {
                &self.0.message
            }

            /// Whether another attempt may succeed.
            #[must_use]
            pub fn is_retryable(&self) -> bool {
                self.0.retryable
            }

            /// Whether the error only says that the run was asked to stop.
            #[must_use]
            pub fn is_cancelled(&self) -> bool {
                self.0.kind == kind::CANCELLED
            }

            /// The errors behind this one, outermost first.
            #[must_use]
            pub fn causes(&self) -> &[String] {
                &self.0.causes
            }

            /// The author's typed details, where there are some.
            ///
            /// # Errors
            /// [`PayloadError`] if they are not of type `T`.
            pub fn details<T: DeserializeOwned>(&self) -> Result<Option<T>, PayloadError> {
                self.0.details.as_ref().map(Payload::decode).transpose()
            }

            /// The error as it is stored.
            #[must_use]
            pub fn as_failure(&self) -> &Failure {
                &self.0
            }

            /// Takes an error as it is stored.
            #[must_use]
            pub fn from_failure(failure: Failure) -> Self {
                Self(failure)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_failure(&self.0, f)
            }
        }

        impl From<$type> for Failure {
            fn from(error: $type) -> Self {
                error.0
            }
        }
    };
}

/// The constructors that activities and workflows share.
macro_rules! failure_constructors {
    ($type:ident, retryable = $retryable:literal) => {
        impl $type {
            /// An error of the author's own kind.
            pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
                Self(Failure {
                    kind: kind.into(),
                    message: message.into(),
                    retryable: $retryable,
                    details: None,
                    causes: Vec::new(),
                })
            }

            /// An error of the author's own kind that no further attempt can mend.
            pub fn permanent(kind: impl Into<String>, message: impl Into<String>) -> Self {
                Self::new(kind, message).retryable(false)
            }

            /// Says whether another attempt may succeed.
            #[must_use]
            pub fn retryable(mut self, retryable: bool) -> Self {
                self.0.retryable = retryable;
                self
            }

            /// Adds typed details for whoever handles the error. Details that can't be encoded are told of as a
            /// cause instead: an error must never be lost over its details.
            #[must_use]
            pub fn with_details<T: Serialize + ?Sized>(mut self, details: &T) -> Self {
                match Payload::encode(details) {
                    Ok(payload) => self.0.details = Some(payload),
                    Err(e) => self
                        .0
                        .causes
                        .push(format!("the error's details are lost: {e}")),
                }
                self
            }
        }

        impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for $type {
            fn from(error: E) -> Self {
                let (message, causes) = message_and_causes(&*error.into());
                let mut error = Self::new(kind::ERROR, message);
                error.0.causes = causes;
                error
            }
        }

        impl From<Cancelled> for $type {
            fn from(cancelled: Cancelled) -> Self {
                Self::permanent(kind::CANCELLED, cancelled.to_string())
            }
        }
    };
}

/// Why an activity or a step failed.
///
/// Any error turns into one through `?` (kind [`kind::ERROR`], retryable), with its chain of causes:
///
/// ```
/// use continuum_worker::ActivityError;
///
/// fn read(text: &str) -> Result<u64, ActivityError> {
///     if text.is_empty() {
///         return Err(ActivityError::permanent("Empty", "there is nothing to read"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(read("").unwrap_err().kind(), "Empty");
/// assert!(read("x").unwrap_err().is_retryable());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityError(Failure);

failure_accessors!(ActivityError);
failure_constructors!(ActivityError, retryable = true);

/// Why a run failed: what a workflow returns.
///
/// Any error turns into one through `?`; the errors of activities and steps keep their kind, details and causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowError(Failure);

failure_accessors!(WorkflowError);
failure_constructors!(WorkflowError, retryable = false);

impl From<ActivityError> for WorkflowError {
    fn from(error: ActivityError) -> Self {
        Self(error.0)
    }
}

impl<E: DomainError> From<Failed<E>> for WorkflowError {
    fn from(failed: Failed<E>) -> Self {
        match failed {
            Failed::Domain(error) => domain_failure(&error).into(),
            Failed::Error(error) | Failed::TimedOut(error) => error.into(),
            Failed::Cancelled => Cancelled.into(),
        }
    }
}

/// The failure of a run, as clients get it. Prints its whole chain of causes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunFailure(Failure);

failure_accessors!(RunFailure);

impl StdError for RunFailure {}

impl From<Failure> for RunFailure {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

/// The run was asked to stop, so what the code waited for will not come.
///
/// It passes through `?`, so that a workflow that does nothing about it ends as cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the run was cancelled")
    }
}

/// An activity's own error type: it reaches the workflow as the value that it was, in [`Failed::Domain`].
///
/// ```
/// use continuum_worker::DomainError;
///
/// #[derive(Debug, serde::Serialize, serde::Deserialize)]
/// enum PayError {
///     Declined { code: u32 },
///     Unreachable,
/// }
/// impl std::fmt::Display for PayError {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "the payment failed: {self:?}")
///     }
/// }
/// impl DomainError for PayError {
///     fn retryable(&self) -> bool {
///         matches!(self, Self::Unreachable)
///     }
/// }
/// assert_eq!(PayError::Unreachable.kind(), "PayError");
/// ```
pub trait DomainError: Serialize + DeserializeOwned + fmt::Display + Send + 'static {
    /// Whether another attempt may succeed.
    fn retryable(&self) -> bool;

    /// The word that histories and metrics show; the type's name unless you say otherwise.
    fn kind(&self) -> String {
        let path = std::any::type_name::<Self>();
        let name = path.split('<').next().unwrap_or(path);
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }
}

/// How an activity with its own error type `E` failed, as the workflow sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed<E> {
    /// The activity returned this error.
    Domain(E),
    /// Anything else: a panic, a lost worker, a result or an error that no longer decodes.
    Error(ActivityError),
    /// The last attempt took too long.
    TimedOut(ActivityError),
    /// The run was asked to stop.
    Cancelled,
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domain(error) => error.fmt(f),
            Self::Error(error) | Self::TimedOut(error) => error.fmt(f),
            Self::Cancelled => Cancelled.fmt(f),
        }
    }
}

/// What an activity may return as its error: [`ActivityError`], [`anyhow::Error`], or a type that implements
/// [`DomainError`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the error of an activity",
    label = "not an activity's error",
    note = "return `Result<_, ActivityError>` or `anyhow::Result<_>`; both take any error through `?`",
    note = "or make `{Self}` a typed error: derive `Serialize` and `Deserialize`, implement `Display` and `DomainError`"
)]
pub trait ActivityFailure: Send + 'static {
    /// The error that the workflow sees at `ctx.activity(..).await`.
    type Seen: Send + 'static;

    /// The error as it crosses the journal.
    fn into_error(self) -> ActivityError;

    /// The error as the workflow sees it.
    fn seen(error: ActivityError) -> Self::Seen;
}

impl ActivityFailure for ActivityError {
    type Seen = Self;

    fn into_error(self) -> ActivityError {
        self
    }

    fn seen(error: ActivityError) -> Self {
        error
    }
}

impl ActivityFailure for anyhow::Error {
    type Seen = ActivityError;

    fn into_error(self) -> ActivityError {
        self.into()
    }

    fn seen(error: ActivityError) -> ActivityError {
        error
    }
}

#[diagnostic::do_not_recommend]
impl<E: DomainError> ActivityFailure for E {
    type Seen = Failed<E>;

    fn into_error(self) -> ActivityError {
        domain_failure(&self)
    }

    /// The details decide first: only the activity's own errors carry some, whatever kind they call themselves.
    fn seen(error: ActivityError) -> Failed<E> {
        if let Ok(Some(domain)) = error.details() {
            return Failed::Domain(domain);
        }
        match error.kind() {
            kind::CANCELLED => Failed::Cancelled,
            kind::TIMED_OUT => Failed::TimedOut(error),
            _ => Failed::Error(error),
        }
    }
}

fn domain_failure<E: DomainError>(error: &E) -> ActivityError {
    ActivityError::new(error.kind(), error.to_string())
        .retryable(error.retryable())
        .with_details(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum PayError {
        Declined { code: u32 },
    }

    impl fmt::Display for PayError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Self::Declined { code } = self;
            write!(f, "declined with code {code}")
        }
    }

    impl DomainError for PayError {
        fn retryable(&self) -> bool {
            false
        }
    }

    #[test]
    fn every_sort_of_error_passes_through_the_question_mark_with_its_causes() {
        fn from_anyhow() -> Result<(), ActivityError> {
            let io = std::io::Error::other("the disk is full");
            Err(anyhow::Error::new(io).context("the receipt was not written"))?
        }
        fn from_text() -> Result<(), WorkflowError> {
            Err("no such order")?
        }
        let error = from_anyhow().unwrap_err();
        assert_eq!(error.kind(), kind::ERROR);
        assert!(error.is_retryable());
        assert_eq!(
            error.to_string(),
            "the receipt was not written: the disk is full"
        );
        assert_eq!(from_text().unwrap_err().message(), "no such order");
    }

    #[test]
    fn a_domain_error_crosses_the_journal_as_the_value_that_it_was() {
        let error = PayError::Declined { code: 51 }.into_error();
        assert_eq!(error.kind(), "PayError");
        assert!(!error.is_retryable());
        let stored = Failure::from(error);
        let seen = PayError::seen(ActivityError::from_failure(stored));
        assert_eq!(seen, Failed::Domain(PayError::Declined { code: 51 }));
        let error = WorkflowError::from(seen);
        assert_eq!(error.to_string(), "PayError: declined with code 51");
        assert!(matches!(
            error.details(),
            Ok(Some(PayError::Declined { code: 51 }))
        ));
    }

    #[test]
    fn details_of_another_type_become_a_plain_error_and_engine_kinds_keep_their_place() {
        let foreign = ActivityError::new("PayError", "old").with_details(&"another shape");
        assert_eq!(PayError::seen(foreign.clone()), Failed::Error(foreign));
        let late = ActivityError::new(kind::TIMED_OUT, "30s passed");
        assert_eq!(PayError::seen(late.clone()), Failed::TimedOut(late));
        assert_eq!(PayError::seen(Cancelled.into()), Failed::Cancelled);
    }

    #[test]
    fn cancellation_keeps_its_kind_through_every_conversion() {
        let through_activity: WorkflowError = ActivityError::from(Cancelled).into();
        let through_failed: WorkflowError = Failed::<PayError>::Cancelled.into();
        assert!(WorkflowError::from(Cancelled).is_cancelled());
        assert!(through_activity.is_cancelled());
        assert!(through_failed.is_cancelled());
    }
}
