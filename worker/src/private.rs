//! What the attributes expand to. Not for use by hand, and not stable.

pub use continuum_schema::event::ActivityOptions;
use continuum_schema::event::RetryPolicy;
pub use futures::future::BoxFuture;

use crate::activity::{DEFAULT_QUEUE, DEFAULT_TIMEOUT, millis};
pub use crate::hash::Folded;

/// The types in a `Result`, behind whatever alias.
#[diagnostic::on_unimplemented(
    message = "an activity or a workflow returns a `Result`",
    label = "not a `Result`"
)]
pub trait Fallible {
    /// The value.
    type Output;
    /// The error.
    type Error;
}

impl<T, E> Fallible for Result<T, E> {
    type Output = T;
    type Error = E;
}

/// How an activity is run whose author says nothing.
#[must_use]
pub fn default_options() -> ActivityOptions {
    ActivityOptions {
        queue: DEFAULT_QUEUE.to_owned(),
        retry: RetryPolicy::default(),
        timeout_ms: millis(DEFAULT_TIMEOUT),
        idempotency_key: None,
    }
}
