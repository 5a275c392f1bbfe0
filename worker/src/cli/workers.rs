//! `workers`: look at the fleet, and let one of it drain.

use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use comfy_table::Cell;
use continuum_bus::{BusState, RequestError};
use continuum_schema::Database;
use continuum_schema::session::{self, Holds, Session, SessionFilter};
use serde::Serialize;
use uuid::Uuid;

use super::error::{CliError, Code};
use super::link::{ClientArgs, Link, ReaderArgs};
use super::output::{Output, Page, Tone, age_text, toned_text};
use super::settings::Span;
use super::{Context, examples};
use crate::engine::left_by_drain;
use crate::view::{
    SessionDetailView, SessionView, Standing, escape_controls, loaded, moment, one_line,
};

/// What a session owns is counted no further than this.
const COUNT_MAX: i64 = 10_000;

/// How long a worker may take to say that it drains.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The pause between two looks at a session that is to be closed.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The longest that a worker's name or build is shown, in characters.
const NAME_CHARS_MAX: usize = 60;

/// Look at the workers of the fleet, and let one drain
#[derive(Subcommand)]
pub(super) enum WorkersCommand {
    List(ListArgs),
    Show(ShowArgs),
    // Boxed: it has the settings of both servers.
    Drain(Box<DrainArgs>),
}

pub(super) async fn run(command: WorkersCommand, context: Context<'_>) -> Result<(), CliError> {
    match command {
        WorkersCommand::List(args) => Box::pin(list(args, &context)).await,
        WorkersCommand::Show(args) => Box::pin(show(args, &context)).await,
        WorkersCommand::Drain(args) => Box::pin(drain(args, &context)).await,
    }
}

/// From when on a worker is taken for silent.
#[derive(Args, Debug)]
struct SilenceArgs {
    /// A worker whose last heartbeat is older than this is shown as silent: three heartbeats by default
    #[arg(long, value_name = "TIME", default_value = "6s")]
    silent_after: Span,
}

const LIST_EXAMPLES: &str = "\
continuum workers list
continuum workers list --all
continuum workers list --format json";

/// List the workers of the fleet
///
/// STATE is what a worker said with its last heartbeat: ready, degraded (it works, but without NATS), draining (it takes
/// no new work). A worker is silent when its heartbeats have stopped; if they don't return, others close its session and
/// go on with its work. A worker that has no session yet is not listed. With --all also sessions that are over: drained,
/// or closed for the reason in the last column.
#[derive(Args)]
#[command(after_help = examples(LIST_EXAMPLES))]
pub(super) struct ListArgs {
    /// Also sessions that are closed, as far as their rows are still kept
    #[arg(long)]
    all: bool,

    /// The most that are listed
    #[arg(long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,

    #[command(flatten)]
    silence: SilenceArgs,

    #[command(flatten)]
    reader: ReaderArgs,
}

/// The answer of `list` for programs.
#[derive(Serialize)]
struct Listed {
    workers: Vec<SessionView>,
    /// Whether there are more than the limit.
    more: bool,
}

async fn list(args: ListArgs, context: &Context<'_>) -> Result<(), CliError> {
    let database = args.reader.open().await?;
    let filter = SessionFilter {
        of: None,
        closed: args.all,
    };
    // One more than is shown tells whether there are more.
    let mut sessions = session::list(&database, &filter, args.limit + 1).await?;
    let more = sessions.len() > usize::try_from(args.limit).unwrap_or(usize::MAX);
    if more {
        sessions.pop();
    }
    if sessions.is_empty() {
        let none = match args.all {
            true => "no worker has ever had a session here",
            false => "no worker has an open session; --all shows those that are closed",
        };
        context.output.remark("note", none);
    }
    let silent_after = args.silence.silent_after.0;
    context.output.answer(
        || Listed {
            workers: sessions
                .iter()
                .map(|session| SessionView::new(session, silent_after))
                .collect(),
            more,
        },
        || list_table(context.output, &sessions, silent_after, args.all),
    )?;
    if more {
        context
            .output
            .remark("more", "there are more; --limit shows them");
    }
    Ok(())
}

fn list_table(output: &Output, sessions: &[Session], silent_after: Duration, all: bool) -> String {
    let mut header = vec![
        "WORKER",
        "STATE",
        "BUILD",
        "RUNS",
        "ACTIVITIES",
        "HEARTBEAT",
        "QUEUES",
    ];
    if all {
        header.push("CLOSED");
    }
    let rows = sessions.iter().map(|session| {
        let mut cells = cells(output, session, silent_after);
        if all {
            cells.push(Cell::new(closed_text(session).unwrap_or_default()));
        }
        cells
    });
    output.table(&header, rows)
}

fn cells(output: &Output, session: &Session, silent_after: Duration) -> Vec<Cell> {
    let standing = Standing::of(session, silent_after);
    // What a closed session said last is not true any more.
    let now = |text: String| match session.open {
        true => Cell::new(text),
        false => Cell::new(""),
    };
    vec![
        Cell::new(one_line(&session.worker, NAME_CHARS_MAX)),
        output.toned_cell(standing.name(), tone(&standing)),
        Cell::new(one_line(&session.build, NAME_CHARS_MAX)),
        now(session.resident.to_string()),
        now(session.activities.to_string()),
        now(age_text(session.beat_age)),
        Cell::new(session.queues.join(", ")),
    ]
}

fn tone(standing: &Standing<'_>) -> Tone {
    match standing {
        Standing::Told("ready") => Tone::Good,
        Standing::Told("degraded") => Tone::Warning,
        Standing::Told("draining") => Tone::Busy,
        Standing::Silent => Tone::Bad,
        Standing::Told(_) | Standing::Drained | Standing::Closed => Tone::Plain,
    }
}

/// When and why a session was closed.
fn closed_text(session: &Session) -> Option<String> {
    let at = moment(session.closed_at?);
    let reason = session.close_reason.as_deref().unwrap_or_default();
    Some(format!("{at}: {}", escape_controls(reason, false)))
}

/// Which worker.
#[derive(Args, Debug)]
struct TargetArgs {
    /// The worker's name, or the id of its session
    #[arg(value_name = "WORKER")]
    worker: String,
}

impl TargetArgs {
    /// The session that is meant: the open one of that name or id, else the one that was opened last.
    async fn find(&self, database: &Database) -> Result<Session, CliError> {
        let mut sessions = sessions_of(database, &self.worker).await?;
        let open = sessions.iter().filter(|session| session.open).count();
        if open > 1 {
            return Err(self.ambiguous(&sessions));
        }
        match sessions.is_empty() {
            true => Err(self.unknown()),
            // The open ones come first, then the younger ones.
            false => Ok(sessions.swap_remove(0)),
        }
    }

    fn unknown(&self) -> CliError {
        CliError::new(
            Code::NotFound,
            format!(
                "no worker and no session is called {:?}; `continuum workers list --all` shows all that are known",
                self.worker
            ),
        )
    }

    fn ambiguous(&self, sessions: &[Session]) -> CliError {
        let ids: Vec<String> = sessions
            .iter()
            .filter(|session| session.open)
            .map(|session| session.session_id.to_string())
            .collect();
        CliError::usage(format!(
            "{} workers have the name {:?}; name one by the id of its session: {}",
            ids.len(),
            self.worker,
            ids.join(", ")
        ))
    }
}

/// The sessions of this name or id, those that are closed too.
async fn sessions_of(
    database: &Database,
    of: &str,
) -> Result<Vec<Session>, continuum_schema::Error> {
    let filter = SessionFilter {
        of: Some(of.to_owned()),
        closed: true,
    };
    session::list(database, &filter, 100).await
}

const SHOW_EXAMPLES: &str = "\
continuum workers show worker-3
continuum workers show 0f8fad5b-d9cb-469f-a165-70867728950e --format json";

/// Show everything that is known of a worker
#[derive(Args)]
#[command(after_help = examples(SHOW_EXAMPLES))]
pub(super) struct ShowArgs {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    silence: SilenceArgs,

    #[command(flatten)]
    reader: ReaderArgs,
}

async fn show(args: ShowArgs, context: &Context<'_>) -> Result<(), CliError> {
    let database = args.reader.open().await?;
    let session = args.target.find(&database).await?;
    let holds = session::holds(&database, session.session_id, COUNT_MAX).await?;
    // Its row may have been deleted in between.
    let holds = holds.ok_or_else(|| args.target.unknown())?;
    let silent_after = args.silence.silent_after.0;
    context.output.answer(
        || SessionDetailView::new(&session, &holds, COUNT_MAX, silent_after),
        || show_text(context.output, &session, &holds, silent_after),
    )
}

fn show_text(output: &Output, session: &Session, holds: &Holds, silent_after: Duration) -> String {
    let standing = Standing::of(session, silent_after);
    let mut page = Page::default();
    page.line("worker", one_line(&session.worker, 1024));
    page.line("session", session.session_id);
    page.line("state", toned_text(standing.name(), tone(&standing)));
    page.line("build", one_line(&session.build, 1024));
    page.line("queues", queues_text(session));
    page.line(
        "opened",
        format!(
            "{}, {} ago",
            moment(session.opened_at),
            age_text(session.age)
        ),
    );
    page.line("heartbeat", format!("{} ago", age_text(session.beat_age)));
    page.optional("closed", closed_text(session));
    if session.open {
        page.line("runs", format!("{} in memory", session.resident));
        page.line("activities", format!("{} running", session.activities));
    }
    page.line("leases", counted(holds.leases));
    page.line("attempts", counted(holds.attempts));
    if session.open {
        page.line("due", due_text(holds.due));
        page.optional("lag", holds.lag.map(lag_text));
    }
    page.table(&loaded_table(output, session));
    page.text
}

fn queues_text(session: &Session) -> String {
    match session.queues.is_empty() {
        true => "none".to_owned(),
        false => session.queues.join(", "),
    }
}

fn due_text(due: i64) -> String {
    match due {
        1 => "1 run that it could take".to_owned(),
        due => format!("{} runs that it could take", counted(due)),
    }
}

fn lag_text(lag: Duration) -> String {
    let age = age_text(lag);
    format!("a timer was due {age} ago, and nobody has taken its run")
}

/// A count that stops at the limit says so.
fn counted(count: i64) -> String {
    match count < COUNT_MAX {
        true => count.to_string(),
        false => format!("{COUNT_MAX} or more"),
    }
}

fn loaded_table(output: &Output, session: &Session) -> String {
    let rows =
        loaded(session).map(|(workflow, version)| vec![Cell::new(workflow), Cell::new(version)]);
    output.table(&["WORKFLOW", "VERSION"], rows)
}

const DRAIN_EXAMPLES: &str = "\
continuum workers drain worker-3
continuum workers drain worker-3 --wait --timeout 30s";

/// Let a worker drain: it takes no new work, ends or gives back what it has, and its process ends
///
/// The request goes over NATS, and the worker's answer says that it drains. A worker that can't be reached so is drained
/// by SIGTERM, or by POST /drain on its HTTP port. Asking again does no harm. With --wait the command ends when the worker
/// has drained: with 0 if it gave back everything, with 7 if others have to find something.
#[derive(Args)]
#[command(after_help = examples(DRAIN_EXAMPLES))]
pub(super) struct DrainArgs {
    #[command(flatten)]
    target: TargetArgs,

    /// Wait until it has drained
    #[arg(long)]
    wait: bool,

    /// The longest wait for that
    #[arg(long, value_name = "TIME", default_value = "1m", requires = "wait")]
    timeout: Span,

    #[command(flatten)]
    client: ClientArgs,
}

/// The answer of `drain` for programs.
#[derive(Serialize)]
struct Draining<'s> {
    worker: &'s str,
    session: Uuid,
    /// `requested` while it drains, `drained` when it has given back everything.
    outcome: &'static str,
}

async fn drain(args: Box<DrainArgs>, context: &Context<'_>) -> Result<(), CliError> {
    let link = args.client.open().await?;
    let session = args.target.find(&link.database).await?;
    let session = match session.open {
        true => ask_to_drain(&link, session).await?,
        false => session,
    };
    let session = match args.wait {
        true => until_closed(&link.database, session, args.timeout.0).await?,
        false => session,
    };
    link.close().await;
    let outcome = outcome(&session)?;
    let worker = one_line(&session.worker, NAME_CHARS_MAX);
    context.output.answer(
        || Draining {
            worker: &session.worker,
            session: session.session_id,
            outcome,
        },
        || match outcome {
            "drained" => format!("worker {worker} has drained; nothing is left behind"),
            _ => format!("worker {worker} drains"),
        },
    )
}

/// What came of it so far.
fn outcome(session: &Session) -> Result<&'static str, CliError> {
    if session.open {
        return Ok("requested");
    }
    let worker = one_line(&session.worker, NAME_CHARS_MAX);
    let reason = session.close_reason.as_deref().unwrap_or_default();
    let told = match left_by_drain(reason) {
        Some("") => return Ok("drained"),
        Some(left) => format!("worker {worker} has drained; {left}"),
        None => format!(
            "worker {worker} has not drained, its session was closed: {}",
            escape_controls(reason, false)
        ),
    };
    Err(CliError::new(
        Code::NotDrained,
        format!("{told}; other workers go on with what it held"),
    ))
}

/// Asks a worker to drain. Returns its session, which may have been closed in the meantime.
async fn ask_to_drain(link: &Link, session: Session) -> Result<Session, CliError> {
    if !link.has_nats {
        return Err(unreachable(
            &session,
            "can't be asked: this instance runs without NATS",
        ));
    }
    let subject = link.subjects.drain(session.session_id);
    let asked = link.bus.request(&subject, Bytes::new(), ANSWER_MAX).await;
    let Err(error) = asked else {
        return Ok(session);
    };
    // One that is just about to end answers no more.
    let session = look(&link.database, session).await?;
    match session.open {
        true => Err(unreachable(&session, &no_answer(link, &error))),
        false => Ok(session),
    }
}

fn no_answer(link: &Link, error: &RequestError) -> String {
    match (error, &link.bus.status().borrow().state) {
        (RequestError::NoResponders(_), _) => {
            "does not listen on NATS: its process is gone or has lost its link".to_owned()
        }
        (RequestError::TimedOut(after), BusState::Connected) => {
            format!("gave no answer within {after:?}")
        }
        // The link's own trouble says more than that there is none.
        (_, BusState::Disconnected { reason }) => format!("can't be asked: {reason}"),
        (error, _) => format!("can't be asked: {error}"),
    }
}

/// `trouble` goes on after the worker's name.
fn unreachable(session: &Session, trouble: &str) -> CliError {
    CliError::new(
        Code::Unavailable,
        format!(
            "worker {} {trouble}; its last heartbeat came {} ago; where it runs, SIGTERM drains it, and so does POST /drain \
             on its HTTP port if it has one",
            one_line(&session.worker, NAME_CHARS_MAX),
            age_text(session.beat_age)
        ),
    )
}

/// The session as it is now.
async fn look(database: &Database, session: Session) -> Result<Session, continuum_schema::Error> {
    let id = session.session_id.to_string();
    let found = sessions_of(database, &id).await?.into_iter().next();
    // A row that was deleted was closed long before.
    Ok(found.unwrap_or(Session {
        open: false,
        ..session
    }))
}

/// Looks at a session until it is closed.
async fn until_closed(
    database: &Database,
    mut session: Session,
    timeout: Duration,
) -> Result<Session, CliError> {
    let mut trouble = None;
    let looking = async {
        while session.open {
            match look(database, session.clone()).await {
                Ok(looked) => (session, trouble) = (looked, None),
                // Postgres may come back in time.
                Err(error) if error.is_transient() => trouble = Some(error),
                Err(error) => return Err(error),
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Ok(())
    };
    match tokio::time::timeout(timeout, looking).await {
        Ok(looked) => Ok(looked.map(|()| session)?),
        Err(_) => Err(too_late(&session, timeout, trouble)),
    }
}

fn too_late(
    session: &Session,
    timeout: Duration,
    trouble: Option<continuum_schema::Error>,
) -> CliError {
    let worker = one_line(&session.worker, NAME_CHARS_MAX);
    let timeout = Span(timeout);
    if let Some(trouble) = trouble {
        let message =
            format!("worker {worker} can't be seen to have drained within {timeout}: {trouble}");
        return CliError::new(Code::TimedOut, message);
    }
    CliError::new(
        Code::TimedOut,
        format!(
            "worker {worker} has not drained within {timeout}; at its last heartbeat, {} ago, it was {} with {} runs and {} \
             activities",
            age_text(session.beat_age),
            session.state,
            session.resident,
            session.activities
        ),
    )
}
