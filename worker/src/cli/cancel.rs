//! `cancel`: ask a run to stop.

use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::error::CliError;
use super::link::ClientArgs;
use super::run_ref::RunArgs;
use super::{Context, examples};

const EXAMPLES: &str = "\
continuum cancel key:order-7 --reason 'the customer called'
continuum cancel key:order-7 && continuum wait key:order-7";

/// Ask a run to stop
///
/// The workflow sees the request at its next wait and may tidy up before it ends; `wait` tells when it has. A run that
/// no worker has begun ends at once.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct CancelArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Why, for people
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "cancelled from the command line"
    )]
    reason: String,

    #[command(flatten)]
    client: ClientArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Cancelled {
    run_id: Uuid,
    /// `cancelled` if the run has ended, `requested` if it will.
    outcome: &'static str,
    warnings: Vec<String>,
}

pub(super) async fn run(args: CancelArgs, context: Context<'_>) -> Result<(), CliError> {
    let link = args.client.open().await?;
    let warnings: Vec<String> = link.warning.clone().into_iter().collect();
    for warning in &warnings {
        context.output.remark("warning", warning);
    }
    let run_id = args.run.resolve(&link.database).await?;
    let ended = link.client.cancel(run_id, &args.reason).await;
    let ended = ended.map_err(|error| CliError::from(error).of_run(run_id))?;
    link.close().await;
    let (outcome, text) = match ended {
        true => (
            "cancelled",
            format!("run {run_id} is cancelled; no worker had begun it"),
        ),
        false => ("requested", format!("run {run_id} is asked to stop")),
    };
    context.output.answer(
        || Cancelled {
            run_id,
            outcome,
            warnings,
        },
        || text,
    )
}
