//! The warden of the singletons: compares, at its interval and whenever it is told that something may be free, what this
//! worker holds with what Postgres says. What is free it takes, what became another's it reaps: its own, never the
//! other's. Each worker has one, and none leads; Postgres picks who holds what.
//!
//! What a session held is dropped by the holdings themselves as soon as the session is lost. They don't wait for a pass
//! of the warden, which may be waiting for Postgres.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::resident::{self, Seat};
use continuum_schema::{Error, Name};
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::core::Core;
use super::holding::{End, Held, Order, hold};
use super::service::panic_text;
use crate::retry::{Backoff, jittered, within};
use crate::singleton::{ResidentContext, ResidentDefinition};

/// The longest pause before a worker takes a singleton again that failed on it. Others may take it meanwhile.
const REST_MAX: Duration = Duration::from_secs(10);

/// The spread of the workers that heard at the same moment that something is free.
const SPREAD: Duration = Duration::from_millis(20);

/// Keeps singletons until the worker drains, then gives them back.
pub(crate) async fn keep(core: Arc<Core>, definitions: Vec<ResidentDefinition>) {
    if definitions.is_empty() {
        return;
    }
    let mut warden = Warden::new(core, definitions);
    warden.watch().await;
    warden.leave().await;
}

struct Warden {
    core: Arc<Core>,
    posts: BTreeMap<Name, Post>,
    /// In the order of the posts.
    names: Vec<Name>,
    holdings: JoinSet<(Name, (End, Duration))>,
    next: Instant,
}

/// One name, and what of it is here.
struct Post {
    definition: ResidentDefinition,
    held: Option<Term>,
    backoff: Backoff,
    rest_until: Option<Instant>,
}

/// A term for which this worker holds a singleton.
struct Term {
    session: Uuid,
    token: i64,
    orders: watch::Sender<Order>,
}

impl Warden {
    fn new(core: Arc<Core>, definitions: Vec<ResidentDefinition>) -> Self {
        let post = |definition: ResidentDefinition| {
            let name = definition.name.clone();
            let post = Post {
                definition,
                held: None,
                backoff: Backoff::new(REST_MAX),
                rest_until: None,
            };
            (name, post)
        };
        let posts: BTreeMap<Name, Post> = definitions.into_iter().map(post).collect();
        Self {
            names: posts.keys().cloned().collect(),
            posts,
            holdings: JoinSet::new(),
            next: Instant::now(),
            core,
        }
    }

    /// Passes until the worker drains.
    async fn watch(&mut self) {
        let core = Arc::clone(&self.core);
        let mut sessions = core.session.subscribe();
        loop {
            tokio::select! {
                biased;
                () = core.draining.cancelled() => return,
                Some(ended) = self.holdings.join_next() => {
                    if let Ok((name, (end, ready))) = ended {
                        self.ended(&name, &end, ready).await;
                    }
                }
                _ = sessions.changed() => self.next = Instant::now(),
                () = core.residents_free.notified() => {
                    self.next = self.next.min(Instant::now() + within(SPREAD));
                }
                () = tokio::time::sleep_until(self.next.into()) => {
                    // A pass that hangs on Postgres holds up no drain.
                    if core.draining.run_until_cancelled(self.pass()).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// One look at all names, and what follows from it.
    async fn pass(&mut self) {
        self.next = Instant::now() + jittered(self.core.config.resident_interval);
        let Some(session) = self.core.session() else {
            return;
        };
        if let Err(error) = self.compare(session).await {
            tracing::debug!(%error, "the residents could not be looked at; the next look may");
        }
        let now = Instant::now();
        let rests = self.posts.values().filter_map(|post| post.rest_until);
        // Rests that are over were looked at, or could not be; either way the next interval is soon enough.
        self.next = rests
            .filter(|until| *until > now)
            .fold(self.next, Instant::min);
    }

    async fn compare(&mut self, session: Uuid) -> Result<(), Error> {
        for seat in resident::look(&self.core.control, &self.names).await? {
            let Some(post) = self.posts.get_mut(&seat.name) else {
                continue;
            };
            let is_resting = post.is_resting();
            match &post.held {
                Some(term) if seat.holder == Some((term.session, term.token)) => {}
                Some(term) => {
                    term.orders.send_replace(Order::Reap);
                }
                None if is_resting => {}
                None if is_to_be_had(&seat, session) => self.take(session, &seat.name).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Tries to take a singleton. Another worker may be quicker.
    async fn take(&mut self, session: Uuid, name: &Name) -> Result<(), Error> {
        let Some(token) = resident::claim(&self.core.control, session, name).await? else {
            return Ok(());
        };
        tracing::info!(resident = %name, token, "resident.taken");
        self.core.metrics.residents.held.inc();
        let Some(post) = self.posts.get_mut(name) else {
            return Ok(());
        };
        let orders = watch::Sender::new(Order::Hold);
        let states = self.core.registry.states().clone();
        let held = Held {
            definition: post.definition.clone(),
            session,
            context: ResidentContext::new(name.clone(), token, states),
        };
        let holding = hold(Arc::clone(&self.core), held, orders.subscribe());
        post.held = Some(Term {
            session,
            token,
            orders,
        });
        let name = name.clone();
        self.holdings.spawn(async move {
            // What the author's code drops may panic.
            let ended = AssertUnwindSafe(holding).catch_unwind().await;
            let failed = |panic: Box<dyn std::any::Any + Send>| {
                let text = format!("it panicked: {}", panic_text(&*panic));
                (End::Failed(text), Duration::ZERO)
            };
            (name, ended.unwrap_or_else(failed))
        });
        Ok(())
    }

    /// Follows up on the end of a holding.
    async fn ended(&mut self, name: &Name, end: &End, ready: Duration) {
        let Some(post) = self.posts.get_mut(name) else {
            return;
        };
        let Some(term) = post.held.take() else {
            return;
        };
        let token = term.token;
        let metrics = &self.core.metrics.residents;
        metrics.held.dec();
        if !matches!(end, End::Left) {
            metrics.lost.inc();
        }
        match end {
            End::Reaped => {
                tracing::warn!(resident = %name, token, "resident.reaped: it is another's, or its session was lost");
                self.next = Instant::now();
                return;
            }
            End::Left => tracing::info!(resident = %name, token, "resident.released"),
            End::Resigned(reason) => {
                tracing::warn!(resident = %name, token, reason, "resident.resigned");
                post.rest(ready);
            }
            End::Failed(reason) => {
                tracing::error!(resident = %name, token, path = post.definition.path, reason, "resident.failed");
                post.rest(ready);
            }
        }
        let next = post
            .rest_until
            .map_or(self.next, |rest| self.next.min(rest));
        self.next = next;
        self.release(name, &term).await;
    }

    /// Lets others take what has ended here. If Postgres can't be told, the end of the session does it.
    async fn release(&self, name: &Name, term: &Term) {
        let Term { session, token, .. } = *term;
        match resident::release(&self.core.control, session, name, token).await {
            Ok(true) => self.core.ring_residents(),
            Ok(false) => tracing::debug!(resident = %name, token, "it was another's already"),
            Err(error) => {
                tracing::debug!(resident = %name, token, %error, "it could not be released")
            }
        }
    }

    /// Gives everything back, each as soon as it has ended.
    async fn leave(&mut self) {
        for term in self.posts.values().filter_map(|post| post.held.as_ref()) {
            term.orders.send_if_modified(|order| {
                let leaves = *order == Order::Hold;
                if leaves {
                    *order = Order::Leave;
                }
                leaves
            });
        }
        while let Some(ended) = self.holdings.join_next().await {
            if let Ok((name, (end, ready))) = ended {
                self.ended(&name, &end, ready).await;
            }
        }
    }
}

/// Whether a session that holds nothing of it may take it. What Postgres says is this session's own and is not here was
/// claimed by a call whose answer was lost, or could not be released.
fn is_to_be_had(seat: &Seat, session: Uuid) -> bool {
    seat.is_free || seat.holder.is_some_and(|(holder, _)| holder == session)
}

impl Post {
    fn is_resting(&mut self) -> bool {
        let rests = self.rest_until.is_some_and(|until| until > Instant::now());
        if !rests {
            self.rest_until = None;
        }
        rests
    }

    /// Pauses after a failure; the longer, the more failures there were in a row.
    fn rest(&mut self, ready: Duration) {
        if ready > REST_MAX {
            self.backoff.reset();
        }
        self.rest_until = Some(Instant::now() + self.backoff.next());
    }
}
