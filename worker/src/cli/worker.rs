//! `worker`: serve an instance until told to stop.

use clap::Args;

use super::error::{CliError, Code};
use super::settings::{DatabaseArgs, InstanceArgs, NatsArgs, SignalArgs, WorkerArgs};
use super::stop::StopSignals;
use super::{Context, examples};
use crate::{BusSource, Drained, Registry, Worker, WorkerConfig, WorkerError};

const EXAMPLES: &str = "\
continuum worker
continuum worker --queues payments,default --activities-max 20
continuum worker --log info,continuum_worker=debug --log-format json";

/// Run this program's workflows and activities until told to stop
///
/// SIGTERM, Ctrl-C or `workers drain` begins a drain: no new work, what is under way may end within the stop timeout, and
/// other workers go on with the rest. A second signal ends the process at once; then too nothing is lost. The program ends
/// with 0 if it gave back everything, and with 7 if something was left for others to find.
///
/// Postgres and NATS may be away at the start and at any later time: the worker says so in its log and goes on by itself.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct WorkerCommandArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    instance: InstanceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    nats: NatsArgs,
    #[command(flatten)]
    signals: SignalArgs,
}

pub(super) async fn run(args: WorkerCommandArgs, context: Context<'_>) -> Result<(), CliError> {
    if is_empty(&context.registry) {
        return Err(CliError::usage(format!(
            "`{}` registers no workflows, no activities and no residents, so it has nothing to run; run the `worker` command of your \
             own program, whose `main` calls `continuum_worker::main(registry![…])`",
            context.program
        )));
    }
    let target = args.database.target(&args.instance)?;
    let bus = match args.nats.config(&target, &args.worker.name())? {
        Some(mut config) => {
            args.signals.apply(&mut config)?;
            BusSource::Nats(Box::new(config))
        }
        None => BusSource::Shared(continuum_bus::Bus::memory()),
    };
    let config = args
        .worker
        .config(target.instance, target.database, bus, &context.registry)?;
    let mut stop = StopSignals::listen()?;
    serve(context.registry, config, &mut stop, std::future::pending()).await
}

pub(super) fn is_empty(registry: &Registry) -> bool {
    registry.workflows().next().is_none()
        && registry.activities().next().is_none()
        && registry.residents().next().is_none()
}

/// Runs a worker until a signal tells it to stop, `trouble` says that it can't go on, or the database turns out to be
/// one that it can't work with.
pub(super) async fn serve(
    registry: Registry,
    config: WorkerConfig,
    stop: &mut StopSignals,
    trouble: impl Future<Output = CliError>,
) -> Result<(), CliError> {
    tracing::info!(
        name = config.name,
        instance = %config.instance,
        workflows = registry.workflows().count(),
        activities = registry.activities().count(),
        queues = queue_names(&config),
        "the worker starts"
    );
    let worker = Worker::start(registry, config).await?;
    let outcome = tokio::select! {
        name = stop.next() => {
            tracing::info!(signal = name, "the worker drains; a second signal ends it at once");
            Ok(())
        }
        // Somebody asked for it over NATS or HTTP.
        _ = worker.drained() => Ok(()),
        error = worker.fatal() => Err(fatal(&error)),
        error = trouble => Err(error),
    };
    let drained = stop.unless_again(worker.stop()).await?;
    tracing::info!(
        activities_handed_back = drained.activities_handed_back,
        "the worker has drained"
    );
    outcome.and_then(|()| clean(&drained))
}

fn queue_names(config: &WorkerConfig) -> String {
    let names: Vec<&str> = config
        .queues
        .iter()
        .map(continuum_schema::Name::as_str)
        .collect();
    names.join(",")
}

fn fatal(error: &WorkerError) -> CliError {
    match error {
        WorkerError::Database(error) => error.duplicate().into(),
    }
}

/// What a drain left behind is a failure for whoever asked for it, though nothing is lost.
fn clean(drained: &Drained) -> Result<(), CliError> {
    match drained.is_clean() {
        true => Ok(()),
        false => Err(CliError::new(
            Code::NotDrained,
            format!("{drained}; others take over when they miss this worker's heartbeat"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::output::{Output, OutputFormat};
    use crate::cli::{Cli, Command};

    #[tokio::test]
    async fn a_program_without_workflows_says_so_instead_of_idling() {
        let cli = Cli::try_parse_from(["continuum", "worker"]).ok().unwrap();
        let Command::Worker(args) = cli.command else {
            panic!("another command")
        };
        let context = Context {
            program: "continuum",
            registry: Registry::new(),
            output: &Output::new(OutputFormat::Text),
        };
        let refused = Box::pin(run(*args, context)).await.unwrap_err();
        assert!(
            refused.message().contains("registers no workflows"),
            "{}",
            refused.message()
        );
    }
}
