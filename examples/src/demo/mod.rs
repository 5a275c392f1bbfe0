//! `orders demo`: many orders, several workers, and one of them is killed in the middle.

mod crew;
mod folder;
mod progress;
mod report;
mod shop;
mod stage;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, timeout};

use crew::Crew;
use folder::Folder;
use progress::Progress;
use report::Report;
use shop::Shop;
use stage::Stage;
use watch::Watch;

pub(crate) use crew::end_with_parent;

/// Runs orders on private servers and kills a worker in the middle: none may be lost, none charged twice.
#[derive(Debug, Parser)]
#[command(name = "orders demo")]
struct Args {
    /// How many orders are placed.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    orders: u32,
    /// How many worker processes share them; one of them is killed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=50))]
    workers: u16,
    /// Keep logs, ledger and databases in this folder, which must be empty.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// How long all of it may take before what is missing counts as lost.
    #[arg(long, default_value = "120s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    limit: Duration,
}

/// The command, with the arguments that follow `demo`.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let args = Args::parse_from(std::iter::once("orders demo".into()).chain(arguments));
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("demo: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(perform(&args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The whole demo; whether it went well. What it leaves on the disk is named if it did not, and removed otherwise.
async fn perform(args: &Args) -> anyhow::Result<bool> {
    let folder = Folder::open(args.keep.as_deref())?;
    introduce(args, &folder);
    let ended = tokio::select! {
        ended = Box::pin(play(args, &folder)) => ended,
        signal = interrupted() => {
            eprintln!("demo: ended by {}", signal?);
            folder.close(true);
            return Ok(false);
        }
    };
    let well = ended.as_ref().is_ok_and(Report::is_clean);
    if let Some(kept) = folder.close(well) {
        println!("Logs, ledger and databases are in {}.", kept.display());
    }
    println!("{}", ended?.line());
    Ok(well)
}

fn introduce(args: &Args, folder: &Folder) {
    let Args {
        orders, workers, ..
    } = args;
    println!(
        "This demo places {orders} orders on a Postgres and a NATS of its own.\n\
         {workers} worker processes share them. Each order charges a card, waits for the word of the fraud\n\
         department, which comes over NATS, and is then shipped or refunded. When half of the cards are charged,\n\
         the busiest worker is killed with `kill -9`. The others find its orders in Postgres and go on with them at\n\
         the line that each had reached: none is lost, and no card is charged twice.\n\
         Meanwhile the workers log to {}.\n",
        folder.path().display()
    );
}

/// Raises the servers, hires the workers, lets the orders run, and adds up.
async fn play(args: &Args, folder: &Folder) -> anyhow::Result<Report> {
    println!("Starting Postgres and NATS ...");
    let mut stage = Stage::raise(folder.path()).await?;
    println!("Starting {} workers ...", args.workers);
    let mut crew = Crew::hire(args.workers, &stage)?;
    let report = Box::pin(trade(args, &stage, &mut crew)).await;
    crew.dismiss().await;
    stage.strike().await;
    report
}

async fn trade(args: &Args, stage: &Stage, crew: &mut Crew) -> anyhow::Result<Report> {
    let began = Instant::now();
    let shop = Shop::new(stage, args.orders);
    let mut watch = Watch::new(stage, &shop, Progress::new(args.orders, began));
    let all = async { futures::try_join!(shop.sell(), shop.review(), watch.until_done(crew)) };
    let in_time = timeout(args.limit, all).await;
    let elapsed = began.elapsed();
    watch.finish();
    match in_time {
        Ok(ended) => {
            ended.context("the demo could not be carried through")?;
        }
        Err(_) => println!(
            "After {} not every order has come to its end.",
            humantime::format_duration(args.limit)
        ),
    }
    let report = Report::gather(stage, shop.runs(), watch.killed(), elapsed).await?;
    println!("{}", report.table());
    Ok(report)
}

/// Resolves when somebody wants the demo to end.
async fn interrupted() -> anyhow::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let name = tokio::select! {
        heard = interrupt.recv() => heard.map(|()| "Ctrl-C"),
        heard = terminate.recv() => heard.map(|()| "SIGTERM"),
    };
    match name {
        Some(name) => Ok(name),
        None => bail!("signals can't be heard"),
    }
}
