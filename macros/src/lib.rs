//! The attributes and macros that workflows are written with. Use them through `continuum_worker`, which exports all
//! of them and everything that they expand to.

mod activity;
mod function;
mod hash;
mod options;
mod pure;
mod scan;
mod select;
mod workflow;

use proc_macro::TokenStream;

/// Makes an async function an activity: a side effect with attempts, run by any worker that serves its queue.
///
/// ```ignore
/// #[activity(queue = "payments", retry(max_attempts = 5, initial = "200ms", factor = 2.0, max = "30s"), timeout = "30s")]
/// async fn charge_card(ctx: ActivityContext, input: Charge) -> Result<Receipt, ActivityError> { .. }
/// ```
///
/// The function takes its context and exactly one input, and returns a `Result` whose error is `ActivityError`,
/// `anyhow::Error` or a type with `DomainError`. Its name stays a function: a plain call runs it here and now, and
/// `ctx.activity(charge_card, input)` has it run durably.
///
/// | option | means | default |
/// | --- | --- | --- |
/// | `name = "…"` | the name in the journal | the function's |
/// | `queue = "…"` | the queue whose workers run it | `default` |
/// | `timeout = "30s"` | the longest that one attempt may take | 5 minutes |
/// | `retry(max_attempts = 5)` | attempts in all | 10 |
/// | `retry(unlimited)` | attempts without end | |
/// | `retry(initial = "…", factor = 2.0, max = "…")` | the waits between them | 200 ms, 2, a minute |
#[proc_macro_attribute]
pub fn activity(attribute: TokenStream, item: TokenStream) -> TokenStream {
    activity::expand(attribute.into(), item.into()).into()
}

/// Makes an async function a workflow: code whose effects are journaled and that any worker can take up again.
///
/// ```ignore
/// #[workflow(version = 1, signals(fraud_review: Review), uses(discount), compatible = ["n1:…"])]
/// async fn order_flow(ctx: &WorkflowContext, order: Order) -> Result<Shipment, WorkflowError> { .. }
/// ```
///
/// | option | means |
/// | --- | --- |
/// | `version = 1` | required; new runs start with the highest version that is registered |
/// | `name = "…"` | the name in the journal, instead of the function's |
/// | `signals(fraud_review: Review)` | makes the typed name `order_flow::fraud_review` |
/// | `uses(discount)` | helpers marked `#[pure]` whose text counts for the hash |
/// | `compatible = ["n1:…"]` | hashes of older code whose runs this code may go on with |
///
/// The hash covers the function's name, arguments, result and body, whatever their formatting. Types, constants and
/// helpers that `uses` doesn't name don't count; replay compares every effect with the journal in any case.
///
/// A use in the body that a replay would not survive (clocks, random values, `tokio`, printing, hash maps, locks) is
/// an error here. The closures of `ctx.step(..)` and `nondeterministic!("reason", ..)` may do anything.
#[proc_macro_attribute]
pub fn workflow(attribute: TokenStream, item: TokenStream) -> TokenStream {
    workflow::expand(attribute.into(), item.into()).into()
}

/// Marks a helper of workflows: its body is checked like theirs, and its text counts for the hash of each workflow
/// that names it in `uses(..)`. It may itself name others: `#[pure(uses(rounding))]`.
///
/// A helper in `uses(..)` without this mark is the compiler's E0573, "expected type, found function".
#[proc_macro_attribute]
pub fn pure(attribute: TokenStream, item: TokenStream) -> TokenStream {
    pure::expand(attribute.into(), item.into()).into()
}

/// Waits for several futures of a workflow and goes on with the first that is ready; the others are dropped.
///
/// ```ignore
/// continuum_worker::select! {
///     review = &mut review => decide(review?),
///     _ = ctx.sleep(DAY), if order.is_urgent() => Decision::Late,
/// }
/// ```
///
/// Branches are asked in source order, so the journal's order of completions decides the winner in a replay as it
/// did at first. A branch whose guard is false is never polled. Panics if every guard is false.
#[proc_macro]
pub fn select(input: TokenStream) -> TokenStream {
    select::expand(input.into()).into()
}
