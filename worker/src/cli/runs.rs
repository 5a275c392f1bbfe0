//! `runs`: look at runs and their histories.

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Cell;
use continuum_schema::activity::{self, OpenActivity};
use continuum_schema::journal::{self, EventRow};
use continuum_schema::run::{self, Filter, Run};
use continuum_schema::{Database, Name};
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::error::CliError;
use super::link::ReaderArgs;
use super::output::{Output, Page, age_text, span, state_text};
use super::run_ref::RunArgs;
use super::settings::namespace;
use super::{Context, examples};
use crate::view::{
    EventView, RunDetailView, RunView, activity_state, attempt_text, cut, escape_controls,
    event_columns, failure_line, moment, note, one_line, waits,
};

/// The longest that a payload is shown in full, in characters.
const PAYLOAD_CHARS_MAX: usize = 4096;

/// Events that are read in one round trip.
const HISTORY_PAGE: i64 = 1000;

/// Look at runs and their histories
#[derive(Subcommand)]
pub(super) enum RunsCommand {
    List(ListArgs),
    Show(ShowArgs),
    History(HistoryArgs),
}

pub(super) async fn run(command: RunsCommand, context: Context<'_>) -> Result<(), CliError> {
    match command {
        RunsCommand::List(args) => Box::pin(list(args, &context)).await,
        RunsCommand::Show(args) => Box::pin(show(args, context.output)).await,
        RunsCommand::History(args) => Box::pin(history(args, context.output)).await,
    }
}

/// The states that are stored. What an active run is doing is told by who holds it.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoredState {
    Active,
    Completed,
    Failed,
    Cancelled,
}

impl StoredState {
    fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

const LIST_EXAMPLES: &str = "\
continuum runs list
continuum runs list --workflow order_flow --state failed --limit 10
continuum runs list --blocked
continuum runs list --before 0190b3c2-0000-7000-8000-000000000000";

/// List runs, the newest first
///
/// STATE says what a run is doing: pending (due), unserved (due, but no worker has its workflow), running (in the memory
/// of a worker), waiting (for a signal, a timer or an activity), blocked (it can't go on; see the note), completed,
/// failed, cancelled.
#[derive(Args)]
#[command(after_help = examples(LIST_EXAMPLES))]
pub(super) struct ListArgs {
    /// Only runs of this workflow
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,

    /// Only runs in this state; `active` are those that have not ended
    #[arg(long, value_enum, value_name = "STATE")]
    state: Option<StoredState>,

    /// Only runs of this namespace
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    namespace: Option<Name>,

    /// Only runs that can't go on
    #[arg(long)]
    blocked: bool,

    /// The most that are listed
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,

    /// Only runs older than this one: the last of the page before
    #[arg(long, value_name = "RUN")]
    before: Option<Uuid>,

    #[command(flatten)]
    reader: ReaderArgs,
}

/// The answer of `list` for programs.
#[derive(Serialize)]
struct Listed {
    runs: Vec<RunView>,
    /// What to give as `--before` for the next page; nothing after the last.
    next: Option<Uuid>,
}

async fn list(args: ListArgs, context: &Context<'_>) -> Result<(), CliError> {
    let workflow = args
        .workflow
        .map(|name| Name::of("workflow name", name))
        .transpose()?;
    let database = args.reader.open().await?;
    let filter = Filter {
        workflow: workflow.map(String::from),
        state: args.state.map(|state| state.name().to_owned()),
        namespace: args.namespace.map(String::from),
        blocked: args.blocked,
        before: args.before,
    };
    let now = database.now().await?;
    // One more than is shown tells whether there are more.
    let mut runs = run::list(&database, &filter, args.limit + 1).await?;
    let more = runs.len() > usize::try_from(args.limit).unwrap_or(usize::MAX);
    if more {
        runs.pop();
    }
    let next = runs.last().filter(|_| more).map(|run| run.run_id);
    if runs.is_empty() {
        context.output.remark("note", "no run matches");
    }
    context.output.answer(
        || Listed {
            runs: runs.iter().map(RunView::new).collect(),
            next,
        },
        || list_table(context.output, &runs, now),
    )?;
    if let Some(next) = next {
        context.output.remark(
            "more",
            &format!("go on with `{} runs list --before {next}`", context.program),
        );
    }
    Ok(())
}

/// `now` is the database's time: ages don't depend on the clock of this machine.
fn list_table(output: &Output, runs: &[Run], now: OffsetDateTime) -> String {
    let rows = runs.iter().map(|run| {
        vec![
            Cell::new(run.run_id),
            Cell::new(&run.workflow),
            Cell::new(
                run.key
                    .as_deref()
                    .map(|key| one_line(key, 40))
                    .unwrap_or_default(),
            ),
            output.state_cell(run.state),
            Cell::new(age(run.created_at, now)),
            Cell::new(note(run)),
        ]
    });
    output.table(&["RUN", "WORKFLOW", "KEY", "STATE", "AGE", "NOTE"], rows)
}

/// The time since a moment.
fn age(since: OffsetDateTime, now: OffsetDateTime) -> String {
    age_text((now - since).try_into().unwrap_or_default())
}

const SHOW_EXAMPLES: &str = "\
continuum runs show key:order-7
continuum runs show 0190b3c2-0000-7000-8000-000000000000 --format json";

/// Show everything that is known of a run
#[derive(Args)]
#[command(after_help = examples(SHOW_EXAMPLES))]
pub(super) struct ShowArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    reader: ReaderArgs,
}

async fn show(args: ShowArgs, output: &Output) -> Result<(), CliError> {
    let database = args.reader.open().await?;
    let run_id = args.run.resolve(&database).await?;
    let run = run::get(&database, run_id).await?;
    let activities = activity::open(&database, run_id).await?;
    output.answer(
        || RunDetailView::new(&run, &activities),
        || show_text(output, &run, &activities),
    )
}

fn show_text(output: &Output, run: &Run, activities: &[OpenActivity]) -> String {
    let mut page = Page::default();
    page.line("run", run.run_id);
    page.line("workflow", &run.workflow);
    page.line("namespace", &run.namespace);
    page.optional("key", run.key.as_deref().map(|key| one_line(key, 1024)));
    page.line("state", state_text(run.state));
    page.optional("waits", waits(run, activities));
    page.optional("worker", run.worker.as_ref());
    page.optional("version", run.version_hash.as_ref());
    page.optional(
        "chain",
        Some(run.chain_id).filter(|chain| *chain != run.run_id),
    );
    page.line("started", moment(run.created_at));
    page.optional(
        "ended",
        run.ended_at
            .map(|at| format!("{}, after {}", moment(at), span(run.created_at, at))),
    );
    page.line("input", cut(&run.input, PAYLOAD_CHARS_MAX));
    page.optional(
        "result",
        run.result
            .as_ref()
            .map(|result| cut(result, PAYLOAD_CHARS_MAX)),
    );
    if let Some(failure) = &run.failure {
        page.line(
            "failure",
            escape_controls(&format!("{}: {}", failure.kind, failure.message), true),
        );
        for cause in &failure.causes {
            page.line("caused by", escape_controls(cause, true));
        }
        page.optional(
            "details",
            failure
                .details
                .as_ref()
                .map(|details| cut(details, PAYLOAD_CHARS_MAX)),
        );
    }
    page.optional(
        "mail",
        (run.mail > 0).then(|| format!("{} not yet read", run.mail)),
    );
    page.optional(
        "unread",
        (run.unread > 0).then(|| format!("{} signals that it ended without reading", run.unread)),
    );
    page.table(&activity_table(output, activities));
    page.text
}

fn activity_table(output: &Output, activities: &[OpenActivity]) -> String {
    let rows = activities.iter().map(|activity| {
        vec![
            Cell::new(&activity.name),
            Cell::new(format!("#{}", activity.effect)),
            Cell::new(&activity.queue),
            Cell::new(attempt_text(activity)),
            Cell::new(activity_state(activity)),
            Cell::new(
                activity
                    .failure
                    .as_ref()
                    .map(failure_line)
                    .unwrap_or_default(),
            ),
        ]
    });
    output.table(
        &[
            "ACTIVITY",
            "EFFECT",
            "QUEUE",
            "ATTEMPT",
            "STATE",
            "LAST FAILURE",
        ],
        rows,
    )
}

const HISTORY_EXAMPLES: &str = "\
continuum runs history key:order-7
continuum runs history key:order-7 --format json";

/// Show the history of a run, an event a line
///
/// `#3` is the third effect that the workflow asked for. Text shortens payloads; JSON has them in full.
#[derive(Args)]
#[command(after_help = examples(HISTORY_EXAMPLES))]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    run: RunArgs,

    #[command(flatten)]
    reader: ReaderArgs,
}

/// The answer of `history` for programs.
#[derive(Serialize)]
struct History {
    run_id: Uuid,
    events: Vec<EventView>,
}

async fn history(args: HistoryArgs, output: &Output) -> Result<(), CliError> {
    let database = args.reader.open().await?;
    let run_id = args.run.resolve(&database).await?;
    // A run without events is another thing than no run.
    run::get(&database, run_id).await?;
    let rows = read_history(&database, run_id).await?;
    if rows.is_empty() {
        output.remark("note", "no worker has begun this run");
    }
    output.answer(
        || History {
            run_id,
            events: rows.iter().map(EventView::new).collect(),
        },
        || history_table(output, &rows),
    )
}

async fn read_history(database: &Database, run_id: Uuid) -> Result<Vec<EventRow>, CliError> {
    let mut rows: Vec<EventRow> = Vec::new();
    loop {
        let after = rows.last().map_or(0, |row| row.seq);
        let page = journal::history(database, run_id, after, HISTORY_PAGE).await?;
        if page.is_empty() {
            return Ok(rows);
        }
        rows.extend(page);
    }
}

fn history_table(output: &Output, rows: &[EventRow]) -> String {
    let rows = rows.iter().map(|row| {
        let (event, detail) = event_columns(row);
        vec![
            Cell::new(row.seq),
            Cell::new(moment(row.at)),
            Cell::new(event),
            Cell::new(detail),
        ]
    });
    output.table(&["SEQ", "TIME", "EVENT", "DETAIL"], rows)
}
