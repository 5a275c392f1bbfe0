//! Fresh ids. Run and session ids are made by the database; only what names a *request* is made here.

use uuid::Uuid;

/// A fresh delivery id, so that a request whose answer was lost can be sent again and counts once.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "this module is the home of fresh ids"
)]
pub fn fresh_delivery_id() -> String {
    Uuid::new_v4().to_string()
}
