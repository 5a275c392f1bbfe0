//! Measures Continuum against what the same Postgres gives without it. The method is in `benches/README.md`.

mod floors;
mod flows;
mod load;
mod meter;
mod report;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use self::floors::Floors;
use self::load::Rounds;
use self::report::{FloorFigures, Report};
use self::stage::{Place, Servers};

/// Measures Continuum on private servers, and the floors beside it.
#[derive(Parser)]
struct Cli {
    /// A short round, for a first impression.
    #[arg(long)]
    quick: bool,
    /// Only these loads, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Load>,
    /// Where the figures are written.
    #[arg(long, default_value = "target/bench/latest.json")]
    out: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// What this program starts itself as: the worker of a measurement.
    #[command(hide = true)]
    Worker(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Runs of sequential steps.
    W1,
    /// Runs of sequential activities.
    W1a,
    /// Start to result, one run at a time.
    W2,
    /// Signal to result, one run at a time.
    W3,
    /// One run that joins many activities.
    W4,
}

/// How much is measured.
struct Effort {
    commits: usize,
    rows_window: Duration,
    rounds: Rounds,
    latency_runs: usize,
    joins: usize,
}

impl Effort {
    fn new(quick: bool) -> Self {
        let rounds = |count, load| Rounds {
            count,
            floor: Duration::from_millis(1_500),
            load,
        };
        if quick {
            return Self {
                commits: 300,
                rows_window: Duration::from_secs(2),
                rounds: rounds(3, Duration::from_secs(3)),
                latency_runs: 200,
                joins: 3,
            };
        }
        Self {
            commits: 2_000,
            rows_window: Duration::from_secs(5),
            rounds: rounds(8, Duration::from_secs(5)),
            latency_runs: 1_000,
            joins: 7,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(Command::Worker(place)) = &cli.command {
        return stage::work(place);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(measure(&cli))?;
    report.print();
    report.write(&cli.out)?;
    println!("\nwritten to {}", cli.out.display());
    Ok(())
}

async fn measure(cli: &Cli) -> anyhow::Result<Report> {
    let effort = Effort::new(cli.quick);
    let wanted = |load: Load| {
        let wanted = cli.only.is_empty() || cli.only.contains(&load);
        if wanted {
            eprintln!("bench: {load:?}");
        }
        wanted
    };
    eprintln!("bench: floors");
    let servers = Servers::start().await?;
    let mut floors = Floors::open(&servers).await?;
    let mut report = Report {
        quick: cli.quick,
        cores: std::thread::available_parallelism()?.get(),
        floors: floor_figures(&mut floors, &effort).await?,
        w1: None,
        w1a: None,
        w2: None,
        w3: None,
        w4: None,
    };
    if wanted(Load::W1) {
        let w1 = load::sequential_steps(&servers, &mut floors, effort.rounds).await?;
        report.floors.append_steps_per_s = w1.append_steps_per_s;
        report.w1 = Some(w1);
    }
    if wanted(Load::W1a) {
        report.w1a = Some(load::sequential_activities(&servers, &mut floors, effort.rounds).await?);
    }
    if wanted(Load::W2) {
        report.w2 = Some(load::start_to_result(&servers, &floors, effort.latency_runs).await?);
    }
    if wanted(Load::W3) {
        report.w3 = Some(load::signal_to_result(&servers, &floors, effort.latency_runs).await?);
    }
    if wanted(Load::W4) {
        report.w4 = Some(load::join(&servers, &floors, effort.joins).await?);
    }
    Ok(report)
}

async fn floor_figures(floors: &mut Floors, effort: &Effort) -> anyhow::Result<FloorFigures> {
    let commit = floors.commits(effort.commits).await?;
    Ok(FloorFigures {
        commit_ms: commit.p50_ms,
        commit_p99_ms: commit.p99_ms,
        rows_per_s: floors.rows_per_s(8, effort.rows_window).await?,
        rows_per_s_one_connection: floors.rows_per_s(1, effort.rows_window).await?,
        append_steps_per_s: floors.append_steps_per_s(effort.rounds.floor).await?,
    })
}
