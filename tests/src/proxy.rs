//! A TCP proxy before a server: it can be led elsewhere, swallow what goes one way or both, hang up, and be slow.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The proxy. Dropping it closes its port and every connection through it.
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    _serving: JoinSet<()>,
}

/// What of a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// What the client says is not heard; what the server says is.
    ToServer,
    /// The server hears everything, and its answers are lost.
    FromServer,
    /// Nothing passes.
    Both,
}

impl Cut {
    const fn stops(self, way: Self) -> bool {
        matches!(
            (self, way),
            (Self::Both, _)
                | (Self::ToServer, Self::ToServer)
                | (Self::FromServer, Self::FromServer)
                | (_, Self::Both)
        )
    }
}

#[derive(Clone, Copy)]
struct State {
    target: SocketAddr,
    /// What does not pass; nobody is told.
    cut: Option<Cut>,
    /// Whether new connections are closed at once.
    refuses: bool,
    /// How much longer everything takes.
    delay: Duration,
    /// Connections with a lower number never pass anything again, and stay open.
    first_alive: u64,
    /// Connections with a lower number are closed.
    first_open: u64,
    /// The number of the next connection.
    next: u64,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1, and leads to `port` of 127.0.0.1.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = watch::Sender::new(State {
            target: (Ipv4Addr::LOCALHOST, port).into(),
            cut: None,
            refuses: false,
            delay: Duration::ZERO,
            first_alive: 0,
            first_open: 0,
            next: 0,
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, state.clone()));
        Self {
            address,
            state,
            _serving: serving,
        }
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of Postgres behind it.
    #[must_use]
    pub fn postgres_url(&self) -> String {
        format!(
            "postgres://postgres@{}/postgres?sslmode=disable",
            self.address
        )
    }

    /// The URL of NATS behind it.
    #[must_use]
    pub fn nats_url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Leads new connections to another port. Those that are open stay where they are.
    pub fn switch(&self, port: u16) {
        self.state
            .send_modify(|state| state.target = (Ipv4Addr::LOCALHOST, port).into());
    }

    /// Swallows everything from now on.
    pub fn hole(&self) {
        self.cut(Cut::Both);
    }

    /// Swallows what goes this way. It is held up, as TCP would send it again: [`forward`](Self::forward) lets it pass.
    pub fn cut(&self, cut: Cut) {
        self.state.send_modify(|state| state.cut = Some(cut));
    }

    /// As [`hole`](Self::hole); the connections of now are swallowed for ever, as by a router that forgot them.
    pub fn hole_for_ever(&self) {
        self.state.send_modify(|state| {
            state.cut = Some(Cut::Both);
            state.first_alive = state.next;
        });
    }

    /// Closes all connections, and each new one at once, as if nobody listened.
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.refuses = true;
            state.first_open = state.next;
        });
    }

    /// Everything takes so much longer, each way.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Lets everything pass again and at once, what was held up included.
    pub fn forward(&self) {
        self.state.send_modify(|state| {
            state.cut = None;
            state.refuses = false;
            state.delay = Duration::ZERO;
        });
    }
}

async fn serve(listener: TcpListener, state: watch::Sender<State>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let mut number = 0;
        let mut refused = false;
        state.send_modify(|state| {
            number = state.next;
            state.next += 1;
            refused = state.refuses;
        });
        if refused {
            continue;
        }
        connections.spawn(serve_one(client, number, state.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves a connection until both sides have hung up, or it is closed from here.
async fn serve_one(client: TcpStream, number: u64, state: watch::Receiver<State>) {
    let mut closing = state.clone();
    tokio::select! {
        () = connect(client, number, state) => {}
        _ = closing.wait_for(|state| number < state.first_open) => {}
    }
}

async fn connect(client: TcpStream, number: u64, mut state: watch::Receiver<State>) {
    let target = passes(&mut state, number, Cut::Both).await.target;
    // A server that is away closes the client's connection too.
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pump(from_client, to_server, number, Cut::ToServer, state.clone()),
        pump(from_server, to_client, number, Cut::FromServer, state),
    );
}

/// Passes on what comes, its end included.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    way: Cut,
    mut state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        let delay = passes(&mut state, number, way).await.delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    // The other side may be gone already.
    drop(to.shutdown().await);
}

/// Waits until connection `number` passes something this way.
async fn passes(state: &mut watch::Receiver<State>, number: u64, way: Cut) -> State {
    let passes = state.wait_for(|state| {
        number >= state.first_alive && !state.cut.is_some_and(|cut| cut.stops(way))
    });
    let state = passes.await.ok().map(|state| *state);
    match state {
        Some(state) => state,
        // The proxy is gone, and this task with it.
        None => std::future::pending().await,
    }
}
