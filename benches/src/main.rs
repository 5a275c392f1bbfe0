//! Measures Continuum against what the same Postgres gives without it. The method is in `benches/README.md`.

mod crowd;
mod floors;
mod flows;
mod load;
mod long;
mod meter;
mod report;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use self::floors::Floors;
use self::load::Rounds;
use self::long::{Figures, Scale, growth, kills, memory, replay, tables, timers};
use self::report::{FloorFigures, Report};
use self::stage::{Place, Servers, WorkerSettings};

/// Measures Continuum on private servers, and the floors beside it.
#[derive(Parser)]
struct Cli {
    /// A short round, for a first impression.
    #[arg(long)]
    quick: bool,
    /// Only these, separated by commas. Those after w4 take long and are measured only when they are named.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Load>,
    /// The size of what takes long, as a part of its full one.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Shows which part of which process the processor time of W1 and W1a goes to.
    #[arg(long)]
    profile: bool,
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
    Worker {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        settings: WorkerSettings,
    },
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
    /// Timers of cold runs on three workers.
    W5,
    /// A worker of two is lost.
    W6,
    /// W1 with 1 to 1,000 runs in flight.
    Growth,
    /// What a waiting run costs, in memory and cold.
    Memory,
    /// W1 beside a million cold runs.
    Cold,
    /// W1 and claims after a million runs have gone through beside a held snapshot.
    Held,
    /// A cold run with a long history takes its next step.
    Replay,
}

impl Load {
    /// What is measured when nothing is named.
    const EVERYDAY: [Self; 5] = [Self::W1, Self::W1a, Self::W2, Self::W3, Self::W4];
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
    if let Some(Command::Worker { place, settings }) = &cli.command {
        return stage::work(place, *settings);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(measure(&cli))?;
    report.print(cli.profile);
    report.write(&cli.out)?;
    println!("\nwritten to {}", cli.out.display());
    Ok(())
}

async fn measure(cli: &Cli) -> anyhow::Result<Report> {
    let effort = Effort::new(cli.quick);
    let wanted = |load: Load| {
        let named: &[Load] = if cli.only.is_empty() {
            &Load::EVERYDAY
        } else {
            &cli.only
        };
        let wanted = named.contains(&load);
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
        long: Figures::default(),
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
    report.long = Box::pin(measure_long(
        &servers,
        effort.rounds,
        Scale(cli.scale),
        wanted,
    ))
    .await?;
    Ok(report)
}

async fn measure_long(
    servers: &Servers,
    rounds: Rounds,
    scale: Scale,
    wanted: impl Fn(Load) -> bool,
) -> anyhow::Result<Figures> {
    let mut figures = Figures::default();
    if wanted(Load::W5) {
        figures.w5 = Some(timers::measure(servers, scale).await?);
    }
    if wanted(Load::W6) {
        figures.w6 = Some(kills::measure(servers, scale).await?);
    }
    if wanted(Load::Growth) {
        figures.w1_growth = Some(growth::measure(servers, rounds).await?);
    }
    if wanted(Load::Memory) {
        figures.memory = Some(memory::measure(servers, scale).await?);
    }
    if wanted(Load::Cold) {
        figures.w1_cold_runs = Some(tables::beside_cold_runs(servers, rounds, scale).await?);
    }
    if wanted(Load::Held) {
        figures.w1_held_snapshot =
            Some(tables::beside_held_snapshot(servers, rounds, scale).await?);
    }
    if wanted(Load::Replay) {
        figures.cold_replay = Some(replay::measure(servers, scale).await?);
    }
    Ok(figures)
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
