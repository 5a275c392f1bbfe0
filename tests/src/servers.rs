//! One Postgres and one NATS for all tests of this process. They end with it.

use continuum_worker::dev::{NatsOptions, PostgresOptions, PrivateNats, PrivatePostgres};
use tokio::sync::OnceCell;

/// The shared servers.
pub struct Servers {
    /// The database server.
    pub postgres: PrivatePostgres,
    /// The message broker.
    pub nats: PrivateNats,
}

static SERVERS: OnceCell<Servers> = OnceCell::const_new();

/// The servers, started by whoever asks first.
///
/// # Panics
/// If a server can't be started: a test without it would prove nothing.
pub async fn servers() -> &'static Servers {
    SERVERS
        .get_or_init(|| async {
            let settings = [("max_connections", "400"), ("deadlock_timeout", "100ms")];
            let postgres = PrivatePostgres::start(PostgresOptions {
                fsync: false,
                settings: settings.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
                ..PostgresOptions::default()
            });
            let nats = PrivateNats::start(NatsOptions::default());
            let (postgres, nats) = tokio::join!(postgres, nats);
            Servers {
                postgres: postgres.expect("a private Postgres starts"),
                nats: nats.expect("a private nats-server starts"),
            }
        })
        .await
}
