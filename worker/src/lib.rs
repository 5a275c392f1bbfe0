//! Placeholder.

// The attributes expand to `::continuum_worker::..`, also in this crate's own tests.
extern crate self as continuum_worker;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod activity;
mod batch;
mod client;
mod config;
mod context;
pub mod dev;
pub mod effect;
mod engine;
pub mod error;
mod hash;
pub mod prelude;
mod registry;
pub mod replay;
mod retry;
mod workflow;

pub use activity::{
    Activity, ActivityCall, ActivityContext, ActivityDefinition, ActivityFn, DEFAULT_QUEUE, DEFAULT_TIMEOUT,
    Payloadable, Retry,
};
pub use client::{Client, ClientError, DEFAULT_NAMESPACE, RunHandle, SignalRequest, Signalled, StartRequest};
pub use config::{BusSource, ConfigError, Limits, WorkerConfig};
pub use context::WorkflowContext;
/// What programs need that speak to the fleet over NATS themselves, for example to publish signals.
pub use continuum_bus as bus;
pub use continuum_macros::{activity, pure, select, workflow};
/// What programs need that prepare or read the database themselves.
pub use continuum_schema as schema;
pub use effect::{Either, SignalError};
pub use engine::{Stopped, Worker, WorkerError, WorkerState, WorkerStatus};
pub use error::{ActivityError, ActivityFailure, Cancelled, DomainError, Failed, RunFailure, WorkflowError};
pub use registry::{ActivityItem, Registrable, Registry, WorkflowItem};
pub use workflow::{Hashed, IntoSignal, SignalName, Workflow, WorkflowCall, WorkflowDefinition, WorkflowFn};
