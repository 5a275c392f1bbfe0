//! A TCP proxy before a server, which can be led elsewhere, and can swallow everything without a word.

use std::net::{Ipv4Addr, SocketAddr};

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

#[derive(Clone, Copy)]
struct State {
    target: SocketAddr,
    /// Nothing passes, and nobody is told.
    is_hole: bool,
    /// Connections with a lower number never pass anything again, and stay open.
    first_alive: u64,
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
            is_hole: false,
            first_alive: 0,
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

    /// Leads new connections to another port. Those that are open stay where they are.
    pub fn switch(&self, port: u16) {
        self.state
            .send_modify(|state| state.target = (Ipv4Addr::LOCALHOST, port).into());
    }

    /// Swallows everything from now on.
    pub fn hole(&self) {
        self.state.send_modify(|state| state.is_hole = true);
    }

    /// As [`hole`](Self::hole); the connections of now are swallowed for ever, as by a router that forgot them.
    pub fn hole_for_ever(&self) {
        self.state.send_modify(|state| {
            state.is_hole = true;
            state.first_alive = state.next;
        });
    }

    /// Lets everything pass again, what was held up included.
    pub fn forward(&self) {
        self.state.send_modify(|state| state.is_hole = false);
    }
}

async fn serve(listener: TcpListener, state: watch::Sender<State>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let mut number = 0;
        state.send_modify(|state| {
            number = state.next;
            state.next += 1;
        });
        connections.spawn(connect(client, number, state.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(client: TcpStream, number: u64, mut state: watch::Receiver<State>) {
    let target = passes(&mut state, number).await.target;
    // A server that is away closes the client's connection too.
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pump(from_client, to_server, number, state.clone()),
        pump(from_server, to_client, number, state),
    );
}

/// Passes on what comes, its end included.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut state: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        passes(&mut state, number).await;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    // The other side may be gone already.
    drop(to.shutdown().await);
}

/// Waits until connection `number` passes something.
async fn passes(state: &mut watch::Receiver<State>, number: u64) -> State {
    let passes = state.wait_for(|state| !state.is_hole && number >= state.first_alive);
    let state = passes.await.ok().map(|state| *state);
    match state {
        Some(state) => state,
        // The proxy is gone, and this task with it.
        None => std::future::pending().await,
    }
}
