//! `signals`: what became of signals that no run could take.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use continuum_schema::mailbox::{self, RejectedRow};
use serde::Serialize;

use super::error::CliError;
use super::link::ReaderArgs;
use super::output::Output;
use super::{Context, examples};
use crate::view::{RejectedView, moment, one_line};

/// Look at signals
#[derive(Subcommand)]
pub(super) enum SignalsCommand {
    Rejected(RejectedArgs),
}

const EXAMPLES: &str = "\
continuum signals rejected
continuum signals rejected --limit 500 --format json";

/// List signals from NATS that could not be taken, the newest first
///
/// A signal is rejected when its subject, its headers or its body break a rule, or when its run is unknown or has
/// ended. Nothing is dropped silently: each is here with the reason.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct RejectedArgs {
    /// The most that are listed
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,

    #[command(flatten)]
    reader: ReaderArgs,
}

/// The answer for programs.
#[derive(Serialize)]
struct Rejected {
    signals: Vec<RejectedView>,
}

pub(super) async fn run(command: SignalsCommand, context: Context<'_>) -> Result<(), CliError> {
    match command {
        SignalsCommand::Rejected(args) => rejected(args, context.output).await,
    }
}

async fn rejected(args: RejectedArgs, output: &Output) -> Result<(), CliError> {
    let database = args.reader.open().await?;
    let rows = mailbox::rejected(&database, args.limit).await?;
    if rows.is_empty() {
        output.remark("note", "no signal was rejected");
    }
    output.answer(
        || Rejected {
            signals: rows.iter().map(RejectedView::new).collect(),
        },
        || {
            output.table(
                &["AT", "SUBJECT", "REASON", "DELIVERY", "BYTES"],
                rows.iter().map(cells),
            )
        },
    )
}

fn cells(row: &RejectedRow) -> Vec<Cell> {
    vec![
        Cell::new(moment(row.at)),
        Cell::new(one_line(&row.subject, 120)),
        Cell::new(one_line(&row.reason, 200)),
        Cell::new(
            row.delivery_id
                .as_deref()
                .map(|id| one_line(id, 64))
                .unwrap_or_default(),
        ),
        Cell::new(row.size),
    ]
}
