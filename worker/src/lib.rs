//! Continuum: durable execution on Postgres and NATS.
//!
//! An ordinary async function is a *workflow*; each effect that it asks for is journaled in Postgres, and after a crash
//! another worker replays the journal and goes on at the same line. Start with [`prelude`], the attributes
//! [`macro@workflow`] and [`macro@activity`], and [`main`], which makes a program of them.
//!
//! | for | see |
//! | --- | --- |
//! | writing workflows | [`macro@workflow`], [`WorkflowContext`], [`effect`] |
//! | writing activities | [`macro@activity`], [`ActivityContext`], [`ActivityError`], [`Retry`] |
//! | state of which the fleet holds one | [`Resident`], [`Registry::resident`], [`Client::resident`] |
//! | a program | [`registry!`], [`Registry`], [`main`] |
//! | starting, signalling, waiting | [`Client`], [`RunHandle`] |
//! | a worker inside your own program | [`Worker`], [`WorkerConfig`] |
//! | what decides whether a run can go on | [`replay`] |
//! | private servers for development and tests | [`dev`] |
//!
//! ```no_run
//! use continuum_worker::prelude::*;
//! use continuum_worker::registry;
//!
//! #[activity(queue = "greetings", retry(max_attempts = 5))]
//! async fn greet(_ctx: ActivityContext, name: String) -> Result<String, ActivityError> {
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! #[workflow(version = 1)]
//! async fn greeting(ctx: &WorkflowContext, name: String) -> Result<String, WorkflowError> {
//!     Ok(ctx.activity(greet, name).await?)
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     continuum_worker::main(registry![greeting, greet])
//! }
//! ```

// The attributes expand to `::continuum_worker::..`, also in this crate's own tests.
extern crate self as continuum_worker;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod activity;
mod batch;
pub mod cli;
mod client;
mod config;
mod context;
pub mod dev;
pub mod effect;
mod engine;
pub mod error;
mod hash;
mod http;
#[doc(hidden)]
pub mod metrics;
pub mod prelude;
mod registry;
pub mod replay;
mod retry;
mod singleton;
mod view;
mod workflow;

pub use activity::{
    Activity, ActivityCall, ActivityContext, ActivityDefinition, ActivityFn, DEFAULT_QUEUE,
    DEFAULT_TIMEOUT, Payloadable, Retry,
};
pub use cli::main;
pub use client::{
    Client, ClientError, DEFAULT_NAMESPACE, ResidentError, ResidentHandle, ResidentRequest,
    RunHandle, SignalRequest, Signalled, StartRequest,
};
pub use config::{BusSource, ConfigError, Limits, WorkerConfig};
pub use context::WorkflowContext;
/// What programs need that speak to the fleet over NATS themselves, for example to publish signals.
pub use continuum_bus as bus;
pub use continuum_macros::{activity, pure, select, workflow};
/// What programs need that prepare or read the database themselves.
pub use continuum_schema as schema;
pub use effect::{Either, SignalError};
pub use engine::{Drained, Worker, WorkerError, WorkerState, WorkerStatus};
pub use error::{
    ActivityError, ActivityFailure, Cancelled, DomainError, Failed, RunFailure, WorkflowError,
};
pub use registry::{ActivityItem, Registrable, Registry, WorkflowItem};
pub use singleton::{BoxError, Resident, ResidentContext};
pub use workflow::{
    Hashed, IntoSignal, SignalName, Workflow, WorkflowCall, WorkflowDefinition, WorkflowFn,
};
