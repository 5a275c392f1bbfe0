//! Workflows: the author's code, whose effects are journaled.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use continuum_schema::Payload;
use futures::future::BoxFuture;

use crate::WorkflowContext;
use crate::activity::Payloadable;
use crate::error::{WorkflowError, kind};

/// A workflow, as `#[workflow]` implements it for the type of the same name as the function.
pub trait Workflow: Send + Sync + Sized + 'static {
    /// What a run is started with.
    type Input: Payloadable;
    /// What a run gives.
    type Output: Payloadable;
    /// Its name in the journal.
    const NAME: &'static str;
    /// Its author's version number; a start takes the highest that is registered.
    const VERSION: u32;
    /// The hash of its code: the scheme (`n1:`) and 32 hexadecimal digits.
    const HASH: &'static str;
    /// Hashes of older code whose runs this code may go on with.
    const COMPATIBLE: &'static [&'static str];
    /// The signals that it declares.
    const SIGNALS: &'static [&'static str];

    /// Runs the author's function.
    fn run(
        ctx: WorkflowContext,
        input: Self::Input,
    ) -> BoxFuture<'static, Result<Self::Output, WorkflowError>>;
}

/// The name of a workflow, where one is wanted: the function marked `#[workflow]`.
#[diagnostic::on_unimplemented(
    message = "this is not a workflow",
    label = "not the name of a function marked `#[workflow]`",
    note = "mark the function `#[workflow(version = 1)]` and pass its name without calling it"
)]
pub trait WorkflowFn<W: Workflow>:
    for<'a> Fn(&'a WorkflowContext, W::Input) -> WorkflowCall<'a, W>
{
}

impl<W, F> WorkflowFn<W> for F
where
    W: Workflow,
    F: for<'a> Fn(&'a WorkflowContext, W::Input) -> WorkflowCall<'a, W>,
{
}

/// A call of the workflow `W` from within another: its code becomes part of the calling run.
#[must_use = "a workflow does nothing until it is awaited"]
pub struct WorkflowCall<'a, W: Workflow>(BoxFuture<'a, Result<W::Output, WorkflowError>>);

impl<'a, W: Workflow> WorkflowCall<'a, W> {
    /// Wraps the author's function.
    pub fn new(call: impl Future<Output = Result<W::Output, WorkflowError>> + Send + 'a) -> Self {
        Self(Box::pin(call))
    }
}

impl<W: Workflow> Future for WorkflowCall<'_, W> {
    type Output = Result<W::Output, WorkflowError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// Code that carries the hash of its own text: workflows, and helpers marked `#[pure]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hash to fold into the workflow's",
    label = "not marked `#[pure]`",
    note = "mark the helper `#[pure]`, or leave it out of `uses(..)`"
)]
pub trait Hashed {
    /// The scheme (`n1:`) and 32 hexadecimal digits.
    const HASH: &'static str;
}

/// The name of a signal together with the type of what it carries.
///
/// `#[workflow(signals(fraud_review: Review))]` makes one as `order_flow::fraud_review`.
pub struct SignalName<T> {
    name: &'static str,
    carries: PhantomData<fn() -> T>,
}

impl<T> SignalName<T> {
    /// The signal `name`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            carries: PhantomData,
        }
    }

    /// The name.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for SignalName<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SignalName<T> {}

impl<T> fmt::Debug for SignalName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SignalName").field(&self.name).finish()
    }
}

/// What names a signal that carries a `T`: a [`SignalName`], or its text.
pub trait IntoSignal<T> {
    /// The signal's name.
    fn into_signal(self) -> SignalName<T>;
}

impl<T> IntoSignal<T> for SignalName<T> {
    fn into_signal(self) -> Self {
        self
    }
}

impl<T> IntoSignal<T> for &'static str {
    fn into_signal(self) -> SignalName<T> {
        SignalName::new(self)
    }
}

/// What the engine makes a run's future with.
pub(crate) type RunWorkflow = Arc<
    dyn Fn(WorkflowContext, Payload) -> BoxFuture<'static, Result<Payload, WorkflowError>>
        + Send
        + Sync,
>;

/// A workflow without its types, as a registry holds it.
#[derive(Clone)]
pub struct WorkflowDefinition {
    pub(crate) name: &'static str,
    /// The Rust path, for messages.
    pub(crate) path: &'static str,
    pub(crate) version: u32,
    pub(crate) hash: &'static str,
    pub(crate) compatible: &'static [&'static str],
    pub(crate) signals: &'static [&'static str],
    pub(crate) run: RunWorkflow,
}

impl WorkflowDefinition {
    /// The workflow `W`.
    #[must_use]
    pub fn of<W: Workflow>() -> Self {
        Self {
            name: W::NAME,
            path: std::any::type_name::<W>(),
            version: W::VERSION,
            hash: W::HASH,
            compatible: W::COMPATIBLE,
            signals: W::SIGNALS,
            run: Arc::new(run_encoded::<W>),
        }
    }

    /// Its name in the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its author's version number.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The hash of its code.
    #[must_use]
    pub fn hash(&self) -> &'static str {
        self.hash
    }

    /// Hashes of older code whose runs this code may go on with.
    #[must_use]
    pub fn compatible(&self) -> &'static [&'static str] {
        self.compatible
    }

    /// The signals that it declares.
    #[must_use]
    pub fn signals(&self) -> &'static [&'static str] {
        self.signals
    }

    /// Whether this code may go on with a run that was begun by the code with this hash.
    #[must_use]
    pub fn accepts(&self, hash: &str) -> bool {
        self.hash == hash || self.compatible.contains(&hash)
    }
}

impl fmt::Debug for WorkflowDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkflowDefinition")
            .field("name", &self.name)
            .field("path", &self.path)
            .field("version", &self.version)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// An input that doesn't decode ends the run with a clear failure.
fn decode<W: Workflow>(input: &Payload) -> Result<W::Input, WorkflowError> {
    input.decode().map_err(|e| {
        let message = format!("the input of workflow `{}`: {e}", W::NAME);
        WorkflowError::permanent(kind::DECODE, message)
    })
}

fn run_encoded<W: Workflow>(
    ctx: WorkflowContext,
    input: Payload,
) -> BoxFuture<'static, Result<Payload, WorkflowError>> {
    Box::pin(async move {
        let output = W::run(ctx, decode::<W>(&input)?).await?;
        Payload::encode(&output).map_err(|e| {
            let message = format!("the result of workflow `{}`: {e}", W::NAME);
            WorkflowError::permanent(kind::ENCODE, message)
        })
    })
}

/// Lets an expression through that the checks of `#[workflow]` refuse, with the reason why it is safe.
///
/// ```
/// # fn info(_: &str) {}
/// continuum_worker::nondeterministic!("a log line may come twice", info("order taken"));
/// ```
#[macro_export]
macro_rules! nondeterministic {
    ($reason:literal, $value:expr $(,)?) => {{
        const _: &str = $reason;
        #[allow(
            clippy::disallowed_methods,
            clippy::disallowed_types,
            clippy::disallowed_macros,
            clippy::let_unit_value
        )]
        let value = $value;
        value
    }};
    ($($other:tt)*) => {
        ::std::compile_error!("say why it is safe: `nondeterministic!(\"reason\", value)`")
    };
}
