//! What authors of workflows, activities and residents need: `use continuum_worker::prelude::*;`
//!
//! ```
//! use continuum_worker::prelude::*;
//!
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Order {
//!     id: String,
//!     cents: u64,
//! }
//!
//! #[activity(queue = "payments", retry(max_attempts = 5), timeout = "30s")]
//! async fn charge_card(ctx: ActivityContext, order: Order) -> Result<String, ActivityError> {
//!     // Whoever takes the money recognises a second attempt by this key.
//!     Ok(format!("{} cents by {}", order.cents, ctx.idempotency_key()))
//! }
//!
//! #[workflow(version = 1, signals(fraud_review: bool))]
//! async fn order_flow(ctx: &WorkflowContext, order: Order) -> Result<String, WorkflowError> {
//!     let is_honest = ctx.signal(order_flow::fraud_review).await?;
//!     if !is_honest {
//!         return Err(WorkflowError::new("Fraud", format!("order {} was refused", order.id)));
//!     }
//!     Ok(ctx.activity(charge_card, order).retry(Retry::attempts(3)).await?)
//! }
//!
//! let registry = registry![order_flow, charge_card];
//! assert!(registry.latest("order_flow").is_some());
//! ```
//!
//! `select!` is not here: a bare `select!` in a workflow could be anybody's, so write `continuum_worker::select!`.

pub use std::time::Duration;

pub use serde::{Deserialize, Serialize};
pub use time::OffsetDateTime;
pub use uuid::Uuid;

pub use crate::{
    ActivityCall, ActivityContext, ActivityError, BoxError, Cancelled, DomainError, Either, Failed,
    Registry, Resident, ResidentContext, Retry, SignalName, WorkflowContext, WorkflowError,
    activity, nondeterministic, pure, registry, workflow,
};
