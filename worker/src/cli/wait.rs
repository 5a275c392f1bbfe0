//! `wait`: until a run has ended.

use clap::Args;
use serde::Serialize;
use uuid::Uuid;

use super::error::CliError;
use super::link::ClientArgs;
use super::run_ref::RunArgs;
use super::settings::Span;
use super::{Context, examples};
use crate::view::{self, PayloadView};

const EXAMPLES: &str = "\
continuum wait key:order-7 --timeout 30s
continuum wait 0190b3c2-0000-7000-8000-000000000000 --format json";

/// Wait until a run has ended, and print its result
///
/// A run that failed or was cancelled is an error with exit code 1.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct WaitArgs {
    #[command(flatten)]
    run: RunArgs,

    /// How long to wait at most [default: for ever]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,

    #[command(flatten)]
    client: ClientArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Ended {
    run_id: Uuid,
    state: &'static str,
    result: PayloadView,
}

pub(super) async fn run(args: WaitArgs, context: Context<'_>) -> Result<(), CliError> {
    let link = args.client.open().await?;
    let run_id = args.run.resolve(&link.database).await?;
    let ended = link
        .client
        .wait(run_id, args.timeout.map(|timeout| timeout.0))
        .await;
    let result = ended.map_err(|error| CliError::from(error).of_run(run_id))?;
    link.close().await;
    context.output.answer(
        || Ended {
            run_id,
            state: "completed",
            result: PayloadView::new(&result),
        },
        || view::full(&result),
    )
}
