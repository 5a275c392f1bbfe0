//! `signal`: a message for a run.

use std::path::PathBuf;

use clap::Args;
use continuum_schema::{Key, Name};
use serde::Serialize;
use uuid::Uuid;

use super::error::CliError;
use super::input;
use super::link::SenderArgs;
use super::run_ref::RunArgs;
use super::{Context, examples};
use crate::Signalled;

const EXAMPLES: &str = "\
continuum signal key:order-7 approved '{\"by\": \"ada\"}'
continuum signal key:order-7 approved --delivery-id mail-4711
continuum signal key:order-7 document --payload-file scan.json";

/// Send a signal to a run
///
/// A run that does not wait for it yet reads it later. Sent again with the same delivery id, a signal counts once.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct SignalCommandArgs {
    #[command(flatten)]
    run: RunArgs,

    /// The signal's name
    #[arg(value_name = "NAME")]
    name: String,

    /// What it carries, as JSON [default: null]
    #[arg(
        value_name = "PAYLOAD",
        conflicts_with = "payload_file",
        allow_negative_numbers = true
    )]
    payload: Option<String>,

    /// A file with the payload as JSON; `-` is standard input
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,

    /// The sender's own id of this signal
    #[arg(long, value_name = "ID")]
    delivery_id: Option<String>,

    #[command(flatten)]
    sender: SenderArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Sent {
    run_id: Uuid,
    name: String,
    outcome: &'static str,
    warnings: Vec<String>,
}

pub(super) async fn run(args: SignalCommandArgs, context: Context<'_>) -> Result<(), CliError> {
    Name::of("signal name", args.name.as_str())?;
    args.delivery_id
        .as_deref()
        .map(|id| Key::of("delivery id", id))
        .transpose()?;
    let payload = input::payload(
        ("the payload", args.payload.as_deref()),
        ("--payload-file", args.payload_file.as_deref()),
        args.sender.payload_bytes_max(),
    )?;
    let link = args.sender.open().await?;
    let warnings: Vec<String> = link.warning.clone().into_iter().collect();
    for warning in &warnings {
        context.output.remark("warning", warning);
    }
    let run_id = args.run.resolve(&link.database).await?;
    let mut request = link.client.signal_named(run_id, &args.name, payload);
    if let Some(id) = &args.delivery_id {
        request = request.delivery_id(id);
    }
    let outcome = request
        .await
        .map_err(|error| CliError::from(error).of_run(run_id))?;
    link.close().await;
    let (word, text) = match outcome {
        Signalled::Accepted => (
            "accepted",
            format!("run {run_id} will read `{}`", args.name),
        ),
        Signalled::Duplicate => (
            "duplicate",
            "this delivery had been accepted before; it counts once".to_owned(),
        ),
    };
    context.output.answer(
        || Sent {
            run_id,
            name: args.name,
            outcome: word,
            warnings,
        },
        || text,
    )
}
