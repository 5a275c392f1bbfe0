//! The connections of a client's command.

use std::time::Duration;

use clap::Args;
use continuum_bus::{Bus, BusState, Subjects};
use continuum_schema::{Database, migration};

use super::error::CliError;
use super::settings::{DatabaseArgs, InstanceArgs, LimitArgs, NatsArgs};
use crate::{Client, Limits};

/// How long a command waits for NATS before it goes on without: nothing is lost, others only learn of it later.
const BUS_PATIENCE: Duration = Duration::from_secs(1);

/// Where to look things up.
#[derive(Args, Debug)]
pub(super) struct ReaderArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

impl ReaderArgs {
    /// A database that is at this build's version.
    pub(super) async fn open(&self) -> Result<Database, CliError> {
        let target = self.database.target(&self.instance)?;
        let database = Database::new(target.database.clone())?;
        migration::check(&database)
            .await
            .map_err(|error| target.reached(error))?;
        Ok(database)
    }
}

/// Where to act.
#[derive(Args, Debug)]
pub(super) struct ClientArgs {
    #[command(flatten)]
    instance: InstanceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    nats: NatsArgs,
}

/// Where to act, with a payload.
#[derive(Args, Debug)]
pub(super) struct SenderArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

impl SenderArgs {
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.limits.payload_limit.0
    }

    pub(super) async fn open(&self) -> Result<Link, CliError> {
        self.client.open_with(self.limits.limits()).await
    }
}

impl ClientArgs {
    pub(super) async fn open(&self) -> Result<Link, CliError> {
        self.open_with(Limits::default()).await
    }

    async fn open_with(&self, limits: Limits) -> Result<Link, CliError> {
        let target = self.database.target(&self.instance)?;
        let nats = self.nats.config(&target, "continuum command")?;
        let has_nats = nats.is_some();
        let bus = match nats {
            Some(config) => Bus::connect(config).await?,
            // A `dev` without NATS polls.
            None => Bus::memory(),
        };
        let database = Database::new(target.database.clone())?;
        let (checked, warning) = tokio::join!(migration::check(&database), connected(&bus));
        checked.map_err(|error| target.reached(error))?;
        Ok(Link {
            client: Client::new(database.clone(), bus.clone(), &target.instance, limits),
            subjects: Subjects::new(&target.instance),
            database,
            bus,
            has_nats,
            warning,
        })
    }
}

/// Waits for the link to NATS for a moment, and says what its absence means.
async fn connected(bus: &Bus) -> Option<String> {
    let mut status = bus.status();
    let settled = status.wait_for(|status| status.state != BusState::Connecting);
    let reason = match tokio::time::timeout(BUS_PATIENCE, settled).await {
        Ok(Ok(status)) => match &status.state {
            BusState::Disconnected { reason } => reason.to_string(),
            _ => return None,
        },
        _ => "NATS did not answer in time".to_owned(),
    };
    Some(format!(
        "{reason}; workers find this by polling, a moment later"
    ))
}

/// Open connections of a client's command.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) database: Database,
    pub(super) bus: Bus,
    pub(super) subjects: Subjects,
    /// Whether the bus reaches anybody but this process.
    pub(super) has_nats: bool,
    /// What is wrong with NATS.
    pub(super) warning: Option<String>,
}

impl Link {
    /// Sends what waits to be sent.
    pub(super) async fn close(self) {
        if self.warning.is_none() {
            self.bus.close().await;
        }
        self.database.close().await;
    }
}
