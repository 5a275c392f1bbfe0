//! `start`: a new run.

use std::path::PathBuf;

use clap::Args;
use continuum_schema::{Key, Name, Payload};
use serde::Serialize;
use uuid::Uuid;

use super::error::CliError;
use super::input;
use super::link::{Link, SenderArgs};
use super::settings::{NamespaceArgs, Span};
use super::{Context, examples};
use crate::view::{self, PayloadView};
use crate::{Registry, RunHandle};

const EXAMPLES: &str = "\
continuum start order_flow --input '{\"id\": 7}' --key order-7
continuum start order_flow --input-file order.json --wait --timeout 1m
generate | continuum start import --input-file - --format json";

/// Start a run of a workflow, and print its id
///
/// A key makes the start safe to repeat: with the same workflow and input it gives the same run, with others it is a
/// conflict. The workflow need not be part of this program; the run waits until a worker registers it.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct StartArgs {
    /// The workflow's name
    #[arg(value_name = "WORKFLOW")]
    workflow: String,

    /// The input, as JSON [default: null]
    #[arg(
        long,
        value_name = "JSON",
        conflicts_with = "input_file",
        allow_hyphen_values = true
    )]
    input: Option<String>,

    /// A file with the input as JSON; `-` is standard input
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,

    /// The idempotency key, which names the run in its namespace
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Wait until the run has ended, and print its result instead of its id
    #[arg(long)]
    wait: bool,

    /// How long to wait at most [default: for ever]
    #[arg(long, value_name = "TIME", requires = "wait")]
    timeout: Option<Span>,

    #[command(flatten)]
    sender: SenderArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Started {
    run_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<PayloadView>,
    warnings: Vec<String>,
}

pub(super) async fn run(args: StartArgs, context: Context<'_>) -> Result<(), CliError> {
    Name::of("workflow name", args.workflow.as_str())?;
    args.key
        .as_deref()
        .map(|key| Key::of("key", key))
        .transpose()?;
    let input = input::payload(
        ("--input", args.input.as_deref()),
        ("--input-file", args.input_file.as_deref()),
        args.sender.payload_bytes_max(),
    )?;
    let mut warnings: Vec<String> = unknown_workflow(&context.registry, &args.workflow)
        .into_iter()
        .collect();
    let link = args.sender.open().await?;
    warnings.extend(link.warning.clone());
    for warning in &warnings {
        context.output.remark("warning", warning);
    }
    let handle = start(&link, &args, input).await?;
    let run_id = handle.run_id();
    let result = match args.wait {
        false => None,
        true => {
            context.output.remark("run", &run_id.to_string());
            let ended = link
                .client
                .wait(run_id, args.timeout.map(|timeout| timeout.0))
                .await;
            Some(ended.map_err(|error| CliError::from(error).of_run(run_id))?)
        }
    };
    link.close().await;
    context.output.answer(
        || Started {
            run_id,
            state: result.is_some().then_some("completed"),
            result: result.as_ref().map(PayloadView::new),
            warnings,
        },
        || {
            result
                .as_ref()
                .map_or_else(|| run_id.to_string(), view::full)
        },
    )
}

async fn start(
    link: &Link,
    args: &StartArgs,
    input: Payload,
) -> Result<RunHandle<Payload>, CliError> {
    let mut request = link
        .client
        .start_named(&args.workflow, input)
        .namespace(args.namespace.namespace.as_str());
    if let Some(key) = &args.key {
        request = request.key(key);
    }
    Ok(request.await?)
}

/// What to say of a workflow that this program does not register, although it registers others.
fn unknown_workflow(registry: &Registry, workflow: &str) -> Option<String> {
    let mut known: Vec<&str> = registry
        .workflows()
        .map(|definition| definition.name)
        .collect();
    known.dedup();
    if known.is_empty() || known.contains(&workflow) {
        return None;
    }
    let close = known
        .iter()
        .copied()
        .min_by_key(|name| distance(name, workflow));
    let meant = close
        .filter(|name| distance(name, workflow) <= 1 + name.len() / 4)
        .map(|name| format!(" (did you mean `{name}`?)"));
    Some(format!(
        "this program does not register `{workflow}`{}; it registers {}. The run waits until a worker does",
        meant.unwrap_or_default(),
        known.join(", ")
    ))
}

/// How many letters must be put in, taken out or changed to come from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut costs: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in one.chars().enumerate() {
        let mut diagonal = row;
        costs[0] = row + 1;
        for column in 0..other.len() {
            let changed = diagonal + usize::from(letter != other[column]);
            diagonal = costs[column + 1];
            costs[column + 1] = changed.min(diagonal + 1).min(costs[column] + 1);
        }
    }
    costs[other.len()]
}

#[cfg(test)]
mod tests {
    use continuum_worker::prelude::*;

    use super::*;

    #[workflow(version = 1)]
    async fn order_flow(_ctx: &WorkflowContext, _input: u32) -> Result<u32, WorkflowError> {
        Ok(0)
    }

    #[test]
    fn the_distance_counts_letters() {
        for (one, other, expected) in [
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("same", "same", 0),
            ("ab", "ba", 2),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn a_misspelt_workflow_is_warned_of_and_a_known_one_is_not() {
        let registry = crate::registry![order_flow];
        let warning = unknown_workflow(&registry, "ordr_flow").unwrap();
        assert!(warning.contains("did you mean `order_flow`?"), "{warning}");
        let warning = unknown_workflow(&registry, "import").unwrap();
        assert!(!warning.contains("did you mean"), "{warning}");
        assert_eq!(unknown_workflow(&registry, "order_flow"), None);
        assert_eq!(unknown_workflow(&Registry::new(), "import"), None);
    }
}
