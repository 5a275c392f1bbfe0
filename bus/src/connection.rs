//! The link to a real server: connect, supervise, confirm, close.
//!
//! The client reconnects by itself. What it leaves open is done here: it says "connected" before its subscriptions
//! are in force again, it may lose its own events, and a header that it can't take (a lone carriage return, which
//! any publisher may send) ends its task for ever. So each connection is confirmed by a round trip before the
//! status says so, a tick looks at what the events may have missed, and a dead client is replaced by a new one.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{AuthError, Client, ConnectOptions, Event, RequestErrorKind, Server, ServerAddr};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{BusConfig, Login};
use crate::credentials::Credentials;
use crate::error::{BarrierError, ConfigError};
use crate::publisher::ReplyGuard;
use crate::status::{BusState, DisconnectReason, Link};

/// How often the supervisor looks at what a lost event would have told it.
const TICK: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to connect.
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(4);
/// The client can't be told to stop while it has no link; after a close it is left to sleep.
const PAUSE_AFTER_CLOSE: Duration = Duration::from_secs(24 * 3600);

/// A bus over a real NATS server. Cheap to clone.
#[derive(Clone)]
pub struct NatsBus {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// The client in use. It changes only when its task has died.
    pub(crate) clients: watch::Sender<Client>,
    pub(crate) link: Arc<Link>,
    pub(crate) timeout: Duration,
    pub(crate) replies: ReplyGuard,
    stop: CancellationToken,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.link.close();
        self.stop.cancel();
    }
}

impl NatsBus {
    /// Starts to connect and returns at once, also when no server can be reached: the status tells the rest.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration breaks a rule.
    pub async fn connect(config: BusConfig) -> Result<Self, ConfigError> {
        let checked = config.check()?;
        let link = Arc::new(Link::new(BusState::Connecting));
        let nudge = Arc::new(Notify::new());
        let options = options(&config, checked.login, &link, &nudge).await?;
        let dialer = Dialer {
            options,
            servers: checked.servers,
        };
        let client = dialer.dial().await?;
        let shared = Arc::new(Shared {
            clients: watch::Sender::new(client),
            link,
            timeout: config.request_timeout,
            replies: ReplyGuard::new(&config),
            stop: CancellationToken::new(),
        });
        tokio::spawn(supervise(Arc::downgrade(&shared), dialer, nudge));
        Ok(Self { shared })
    }

    /// A round trip to the server: when it ends, every earlier subscription and publish of this client is in force
    /// there.
    ///
    /// # Errors
    /// [`BarrierError`] if there is no link or no answer within the request timeout.
    pub async fn barrier(&self) -> Result<(), BarrierError> {
        let shared = &self.shared;
        if !shared.link.is_connected() {
            return Err(BarrierError::Disconnected);
        }
        round_trip(&shared.client(), &shared.link, shared.timeout).await
    }

    /// Sends what is queued, ends all subscriptions, and leaves. Takes at most twice the request timeout.
    pub async fn close(&self) {
        let shared = &self.shared;
        let linked = self.barrier().await.is_ok();
        // First the supervisor: it would take the drained client for a dead one and dial anew.
        shared.stop.cancel();
        if linked {
            let drained = async {
                if shared.client().drain().await.is_ok() {
                    shared.link.closed().await;
                }
            };
            if tokio::time::timeout(shared.timeout, drained).await.is_err() {
                tracing::warn!("the NATS client did not drain in time");
            }
        }
        shared.link.close();
    }
}

impl Shared {
    pub(crate) fn client(&self) -> Client {
        self.clients.borrow().clone()
    }

    /// Whether a message handed to the client now goes out now.
    pub(crate) fn is_up(&self) -> bool {
        !self.link.is_closed() && self.client().connection_state() == State::Connected
    }
}

struct Dialer {
    options: ConnectOptions,
    servers: Vec<ServerAddr>,
}

impl Dialer {
    async fn dial(&self) -> Result<Client, ConfigError> {
        let connecting = self.options.clone().connect(self.servers.clone());
        connecting.await.map_err(|error| ConfigError::Address {
            address: String::new(),
            reason: error.to_string(),
        })
    }
}

async fn options(
    config: &BusConfig,
    login: Login,
    link: &Arc<Link>,
    nudge: &Arc<Notify>,
) -> Result<ConnectOptions, ConfigError> {
    let options = logged_in(login)
        .await?
        .name(&config.connection_name)
        .custom_inbox_prefix(&config.inbox_prefix)
        .request_timeout(Some(config.request_timeout))
        .subscription_capacity(config.subscription_capacity)
        .require_tls(config.tls.require)
        .retry_on_initial_connect()
        .max_reconnects(None);
    let options = with_tls_files(options, config);
    Ok(with_callbacks(options, link, nudge))
}

async fn logged_in(login: Login) -> Result<ConnectOptions, ConfigError> {
    let options = ConnectOptions::new();
    match login {
        Login::Nobody => Ok(options),
        Login::Password { user, password } => Ok(options.user_and_password(user, password)),
        Login::Token(token) => Ok(options.token(token)),
        Login::File(path) => with_credentials(path).await,
    }
}

/// A file that can't be used is told at once; later, when it is read again, by the reason of the lost link.
async fn with_credentials(path: PathBuf) -> Result<ConnectOptions, ConfigError> {
    Credentials::read(&path)
        .await
        .map_err(|source| ConfigError::File {
            what: "NATS credentials file",
            path: path.clone(),
            source,
        })?;
    Ok(ConnectOptions::with_auth_callback(move |nonce| {
        let path = path.clone();
        async move {
            let credentials = Credentials::read(&path).await.map_err(AuthError::new)?;
            credentials.answer(&nonce)
        }
    }))
}

fn with_tls_files(mut options: ConnectOptions, config: &BusConfig) -> ConnectOptions {
    let tls = &config.tls;
    if let Some(ca) = &tls.ca_file {
        options = options.add_root_certificates(ca.clone());
    }
    if let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    options
}

fn with_callbacks(
    options: ConnectOptions,
    link: &Arc<Link>,
    nudge: &Arc<Notify>,
) -> ConnectOptions {
    let (events, attempts, pauses) = (link.clone(), link.clone(), link.clone());
    let nudge = nudge.clone();
    options
        .event_callback(move |event| {
            on_event(&events, &nudge, event);
            futures::future::ready(())
        })
        .reconnect_to_server_callback(move |servers, _| {
            // Asked before each attempt, this is the only place that learns why the last one failed.
            if let Some(reason) = reason_of(&servers) {
                attempts.attempt_failed(reason);
            }
            futures::future::ready(None)
        })
        .reconnect_delay_callback(move |attempt| {
            if pauses.is_closed() {
                PAUSE_AFTER_CLOSE
            } else {
                pause_before(attempt)
            }
        })
}

fn on_event(link: &Link, nudge: &Notify, event: Event) {
    match event {
        // The supervisor confirms it before the status says so.
        Event::Connected => nudge.notify_one(),
        Event::Disconnected => {
            tracing::warn!("the link to NATS broke");
            link.lost();
        }
        Event::SlowConsumer(_) => link.missed(),
        Event::ServerError(error) => tracing::warn!(%error, "NATS reports an error"),
        Event::ClientError(error) => on_client_error(link, &error.to_string()),
        Event::Closed => link.close(),
        Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
        Event::Draining => {}
    }
}

fn on_client_error(link: &Link, error: &str) {
    if error.contains("authorization violation") || error.contains("failed signing nonce") {
        tracing::warn!("NATS refused the credentials");
        link.attempt_failed(DisconnectReason::CredentialsRefused);
    } else if error.contains("DNS error") {
        link.attempt_failed(DisconnectReason::Unreachable(error.to_owned()));
    }
}

fn reason_of(servers: &[Server]) -> Option<DisconnectReason> {
    let errors: Vec<_> = servers
        .iter()
        .filter_map(|server| Some((server, server.last_error.as_deref()?)))
        .collect();
    if errors.is_empty() {
        return None;
    }
    let refused = |text: &str| {
        text.starts_with("authorization violation") || text.starts_with("failed signing nonce")
    };
    if errors.iter().any(|(_, text)| refused(text)) {
        return Some(DisconnectReason::CredentialsRefused);
    }
    let texts: Vec<_> = errors
        .iter()
        .map(|(server, text)| format!("{}:{}: {text}", server.addr.host(), server.addr.port()))
        .collect();
    Some(DisconnectReason::Unreachable(texts.join(", ")))
}

/// None before the first attempt, then up to 2 ms doubling to 4 s, half of it random so that a fleet does not come
/// back at once.
#[expect(
    clippy::disallowed_methods,
    reason = "the home of the bus's jitter, which decides nothing but a pause"
)]
fn pause_before(attempt: usize) -> Duration {
    let Some(doublings) = attempt.checked_sub(1).filter(|n| *n > 0) else {
        return Duration::ZERO;
    };
    let doublings = u32::try_from(doublings).unwrap_or(u32::MAX);
    let full = Duration::from_millis(2_u64.saturating_pow(doublings)).min(RECONNECT_PAUSE_MAX);
    full.mul_f64(rand::random_range(0.5..=1.0))
}

/// The server answers a request without a listener at once, and it reads the commands of a client in their order,
/// so that answer says that everything before it has been done.
pub(crate) async fn round_trip(
    client: &Client,
    link: &Link,
    timeout: Duration,
) -> Result<(), BarrierError> {
    let request = async_nats::Request::new()
        .payload(Bytes::new())
        .timeout(Some(timeout));
    let asked = client.send_request(client.new_inbox(), request);
    let bounded = tokio::time::timeout(timeout, asked);
    match link.unless_lost(bounded).await? {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
        Ok(Err(error)) if error.kind() == RequestErrorKind::TimedOut => Err(BarrierError::TimedOut),
        Ok(Err(_)) => Err(BarrierError::Disconnected),
        Err(_) => Err(BarrierError::TimedOut),
    }
}

/// Runs until the bus is closed or its last handle is gone.
async fn supervise(shared: Weak<Shared>, dialer: Dialer, nudge: Arc<Notify>) {
    loop {
        let Some((client, link, timeout, stop)) = shared.upgrade().map(|shared| {
            (
                shared.client(),
                shared.link.clone(),
                shared.timeout,
                shared.stop.clone(),
            )
        }) else {
            return;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = watch_client(&client, &link, timeout, &nudge) => {}
        }
        drop(client);
        if link.is_closed() {
            return;
        }
        tracing::warn!("the NATS client died; a new one takes its place");
        link.lost();
        match (dialer.dial().await, shared.upgrade()) {
            (Ok(client), Some(shared)) => drop(shared.clients.send_replace(client)),
            (Err(error), _) => {
                tracing::error!(%error, "no new NATS client can be made");
                return;
            }
            (_, None) => return,
        }
    }
}

/// Keeps the status true for as long as the client's task lives.
async fn watch_client(client: &Client, link: &Link, timeout: Duration, nudge: &Notify) {
    // Ends when the task that feeds it ends, whatever killed that task.
    let Ok(mut canary) = client.subscribe(client.new_inbox()).await else {
        return;
    };
    let mut confirmed = 0;
    loop {
        let connects = client
            .statistics()
            .connects
            .load(std::sync::atomic::Ordering::Relaxed);
        let up = client.connection_state() == State::Connected;
        if up && connects != confirmed {
            match round_trip(client, link, timeout).await {
                Ok(()) => {
                    confirmed = connects;
                    link.connected();
                    tracing::info!("connected to NATS");
                    continue;
                }
                Err(BarrierError::TimedOut) => link.attempt_failed(DisconnectReason::NoRoundTrip),
                Err(BarrierError::Disconnected) => {}
            }
        } else if !up && link.is_connected() {
            link.lost();
        }
        tokio::select! {
            heard = canary.next() => if heard.is_none() { return },
            () = nudge.notified() => {}
            () = tokio::time::sleep(TICK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_differ() {
        assert_eq!(pause_before(0), Duration::ZERO);
        assert_eq!(pause_before(1), Duration::ZERO);
        for attempt in [2, 5, 13, 64, usize::MAX] {
            let pause = pause_before(attempt);
            assert!(
                pause >= Duration::from_millis(1) && pause <= RECONNECT_PAUSE_MAX,
                "{attempt}: {pause:?}"
            );
        }
        let pauses: Vec<_> = (0..16).map(|_| pause_before(20)).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
