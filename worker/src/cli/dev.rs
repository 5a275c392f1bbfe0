//! `dev`: a private cluster in one process.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use clap::Args;
use continuum_bus::{Bus, BusConfig};
use continuum_schema::{Database, DatabaseConfig, Name, migration};

use super::dev_file::{DEFAULT_FOLDER, DevFile};
use super::error::{CliError, Code};
use super::settings::{InstanceArgs, WorkerArgs};
use super::stop::StopSignals;
use super::worker::{is_empty, serve};
use super::{Context, examples};
use crate::BusSource;
use crate::dev::{DevError, NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};

const EXAMPLES: &str = "\
continuum dev
continuum dev --ephemeral
continuum dev --data /var/tmp/shop --instance shop";

/// Run a private cluster: Postgres, NATS and a worker with this program's workflows
///
/// The servers are children of this process and end with it, however it ends; nothing is shared with other servers of
/// the machine. The other commands find them when they run in the same folder.
#[derive(Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct DevArgs {
    /// The folder that keeps the data between starts
    #[arg(long, env = "CONTINUUM_DEV_DATA", value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    data: PathBuf,

    /// Keep nothing: the data goes when the process ends
    #[arg(long)]
    ephemeral: bool,

    #[command(flatten)]
    instance: InstanceArgs,
    #[command(flatten)]
    worker: WorkerArgs,
}

pub(super) async fn run(args: DevArgs, context: Context<'_>) -> Result<(), CliError> {
    let mut stop = StopSignals::listen()?;
    let folder = (!args.ephemeral).then_some(args.data.as_path());
    let started = tokio::select! {
        started = Box::pin(Servers::start(folder)) => started,
        // What was started goes with the future that is dropped here.
        _ = stop.next() => return Ok(()),
    };
    let mut servers = started?;
    let outcome = Box::pin(run_on(&servers, &args, context, &mut stop)).await;
    servers.stop().await;
    outcome
}

async fn run_on(
    servers: &Servers,
    args: &DevArgs,
    context: Context<'_>,
    stop: &mut StopSignals,
) -> Result<(), CliError> {
    let instance = args.instance.name();
    let database = DatabaseConfig::new(servers.postgres.url(), &instance);
    migrate(&database).await?;
    let _published = match args.ephemeral {
        true => None,
        false => Some(servers.dev_file(&instance).publish(&args.data)?),
    };
    context.output.answer(
        || servers.dev_file(&instance),
        || welcome(servers, args, &context),
    )?;
    if is_empty(&context.registry) {
        return tokio::select! {
            _ = stop.next() => Ok(()),
            error = servers.ended() => Err(error),
        };
    }
    let config = args
        .worker
        .config(instance, database, servers.bus(), &context.registry)?;
    serve(context.registry, config, stop, servers.ended()).await
}

async fn migrate(config: &DatabaseConfig) -> Result<(), CliError> {
    let database = Database::new(config.clone())?;
    migration::migrate(&database).await?;
    database.close().await;
    Ok(())
}

/// The servers of a private cluster.
struct Servers {
    postgres: PrivatePostgres,
    /// Nothing where nats-server is not installed.
    nats: Option<PrivateNats>,
}

impl Servers {
    async fn start(folder: Option<&Path>) -> Result<Self, CliError> {
        let postgres = PostgresOptions {
            data_dir: folder.map(|folder| folder.join("postgres")),
            fsync: folder.is_some(),
            ..PostgresOptions::default()
        };
        let nats = NatsOptions {
            data_dir: folder.map(|folder| folder.join("nats")),
            ..NatsOptions::default()
        };
        let (postgres, nats) =
            tokio::join!(PrivatePostgres::start(postgres), PrivateNats::start(nats));
        let nats = match nats {
            Ok(nats) => Some(nats),
            Err(DevError::NatsNotFound) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            postgres: postgres?,
            nats,
        })
    }

    fn bus(&self) -> BusSource {
        match &self.nats {
            Some(nats) => BusSource::Nats(Box::new(BusConfig::new([nats.url()]))),
            None => BusSource::Shared(Bus::memory()),
        }
    }

    fn dev_file(&self, instance: &Name) -> DevFile {
        DevFile {
            pid: std::process::id().cast_signed(),
            instance: instance.clone(),
            database_url: self.postgres.url(),
            nats_url: self.nats.as_ref().map(|nats| nats.url().to_owned()),
        }
    }

    /// Waits until one of the servers ends by itself.
    async fn ended(&self) -> CliError {
        let nats = async {
            match &self.nats {
                Some(nats) => nats.exited().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = self.postgres.exited() => ended("postgres", status, &self.postgres.log_tail()),
            status = nats => {
                let log = self.nats.as_ref().map(PrivateNats::log_tail).unwrap_or_default();
                ended("nats-server", status, &log)
            }
        }
    }

    async fn stop(&mut self) {
        if let Some(nats) = &mut self.nats {
            nats.stop().await;
        }
        self.postgres.stop().await;
    }
}

fn ended(server: &str, status: Option<ExitStatus>, log: &str) -> CliError {
    let how = status.map_or_else(String::new, |status| format!(" ({status})"));
    CliError::new(
        Code::Unavailable,
        format!("{server} has ended{how}; its last words:\n{log}"),
    )
}

/// Where the servers are, and what to do next.
fn welcome(servers: &Servers, args: &DevArgs, context: &Context<'_>) -> String {
    let Context {
        program, registry, ..
    } = context;
    let mut names: Vec<&str> = registry.workflows().map(|workflow| workflow.name).collect();
    names.dedup();
    let workflows = match names.is_empty() {
        true => "none in this program; start the worker of your own".to_owned(),
        false => names.join(", "),
    };
    let nats = match &servers.nats {
        Some(nats) => nats.url().to_owned(),
        None => "none: nats-server is not installed, so signals over NATS are not available, and other processes are \
                 heard of by polling"
            .to_owned(),
    };
    let data = match args.ephemeral {
        true => "nothing is kept".to_owned(),
        false => args.data.display().to_string(),
    };
    let start = names.first().unwrap_or(&"WORKFLOW");
    format!(
        "Postgres   {postgres}\nNATS       {nats}\ninstance   {instance}\ndata       {data}\nworkflows  {workflows}\n\n\
         Ctrl-C stops everything. Next, {how}:\n\
         \x20 {program} start {start} --input 'null'\n\
         \x20 {program} runs list\n",
        postgres = servers.postgres.url(),
        instance = args.instance.name(),
        how = how_to_reach(servers, args),
    )
}

/// How another shell reaches these servers.
fn how_to_reach(servers: &Servers, args: &DevArgs) -> String {
    if !args.ephemeral && args.data == Path::new(DEFAULT_FOLDER) {
        return "in another shell in this folder".to_owned();
    }
    let mut exports = format!(
        "\n  export CONTINUUM_DATABASE_URL='{}'",
        servers.postgres.url()
    );
    if let Some(nats) = &servers.nats {
        exports += &format!("\n  export CONTINUUM_NATS_URL='{}'", nats.url());
    }
    if let Some(instance) = &args.instance.instance {
        exports += &format!("\n  export CONTINUUM_INSTANCE='{instance}'");
    }
    format!("in another shell{exports}\n ")
}
