//! What the play needs: servers, a client, the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use continuum_examples::Ledger;
use continuum_worker::bus::{Bus, BusConfig, SignalSettings, SignalStream, Subjects};
use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
use continuum_worker::schema::{Database, DatabaseConfig, Name, migration};
use continuum_worker::{Client, Limits};
use tokio::time::timeout;

/// The isolated runtime that the demo is.
pub(super) const INSTANCE: &str = "demo";

/// A review that the killed worker had fetched and not yet stored is delivered again after so long.
pub(super) const SIGNAL_ACK_WAIT: Duration = Duration::from_secs(5);

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Private servers and the connections to them.
pub(super) struct Stage {
    pub(super) client: Client,
    pub(super) database: Database,
    pub(super) signals: SignalStream,
    pub(super) ledger: Ledger,
    pub(super) folder: PathBuf,
    bus: Bus,
    postgres: PrivatePostgres,
    nats: PrivateNats,
}

impl Stage {
    /// Starts the servers with their data in `folder` and prepares the database and the signal stream.
    pub(super) async fn raise(folder: &Path) -> anyhow::Result<Self> {
        let (postgres, nats) = start_servers(folder).await?;
        let instance = Name::new(INSTANCE)?;
        let database = Database::new(DatabaseConfig::new(postgres.url(), &instance))?;
        migration::migrate(&database)
            .await
            .context("the database could not be prepared")?;

        let bus = Bus::connect(BusConfig::new([nats.url()])).await?;
        timeout(
            CONNECT_PATIENCE,
            bus.status().wait_for(|status| status.is_connected()),
        )
        .await
        .context("NATS does not answer")??;
        let signals = bus.signals(&Subjects::new(&instance), &signal_settings());
        signals.ensure().await?;
        Ok(Self {
            client: Client::new(database.clone(), bus.clone(), &instance, Limits::default()),
            database,
            signals,
            ledger: Ledger::new(folder.join("ledger")),
            folder: folder.to_owned(),
            bus,
            postgres,
            nats,
        })
    }

    pub(super) fn postgres_url(&self) -> String {
        self.postgres.url()
    }

    pub(super) fn nats_url(&self) -> &str {
        self.nats.url()
    }

    /// Takes everything down in order.
    pub(super) async fn strike(&mut self) {
        self.bus.close().await;
        self.database.close().await;
        self.nats.stop().await;
        self.postgres.stop().await;
    }
}

/// The workers are told the same.
fn signal_settings() -> SignalSettings {
    SignalSettings {
        ack_wait: SIGNAL_ACK_WAIT,
        ..SignalSettings::default()
    }
}

async fn start_servers(folder: &Path) -> anyhow::Result<(PrivatePostgres, PrivateNats)> {
    let postgres = PostgresOptions {
        data_dir: Some(folder.join("postgres")),
        ..PostgresOptions::default()
    };
    let nats = NatsOptions {
        data_dir: Some(folder.join("nats")),
        ..NatsOptions::default()
    };
    Ok(futures::try_join!(
        PrivatePostgres::start(postgres),
        PrivateNats::start(nats)
    )?)
}
