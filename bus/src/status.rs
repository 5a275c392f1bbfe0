//! What is known of the link to the server.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::error::BarrierError;

/// The link, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusStatus {
    /// Whether messages flow.
    pub state: BusState,
    /// Rises whenever messages may have been missed: at each (re)connect, once all subscriptions are in force, and
    /// whenever a subscription overflowed. A rise calls for a catch-up pass.
    pub generation: u64,
}

/// Whether messages flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusState {
    /// The first connection is under way, or a connection stands and its subscriptions are not yet confirmed.
    Connecting,
    /// Messages flow and every subscription is in force.
    Connected,
    /// There is no link. The bus goes on trying.
    Disconnected {
        /// Why.
        reason: DisconnectReason,
    },
    /// [`Bus::close`](crate::Bus::close) was called.
    Closed,
}

/// Why there is no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// The link was there and broke.
    #[error("the link to NATS broke")]
    LinkLost,
    /// A server was reached and refused the credentials.
    #[error("NATS refused the credentials")]
    CredentialsRefused,
    /// No server could be reached.
    #[error("no NATS server can be reached: {0}")]
    Unreachable(String),
    /// A server let us in and answers nothing: most often a missing permission on the inbox prefix.
    #[error(
        "NATS does not answer on the inbox prefix; publish and subscribe permission there is needed"
    )]
    NoRoundTrip,
}

impl BusStatus {
    /// Whether messages flow.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state == BusState::Connected
    }
}

/// The one place that changes the status; shared by a bus, its subscriptions and its supervisor.
#[derive(Debug)]
pub(crate) struct Link {
    status: watch::Sender<BusStatus>,
    /// Counts broken links, so that whoever waits for an answer stops waiting.
    losses: watch::Sender<u64>,
    dropped_hints: AtomicU64,
}

impl Link {
    pub(crate) fn new(state: BusState) -> Self {
        Self {
            status: watch::Sender::new(BusStatus {
                state,
                generation: 0,
            }),
            losses: watch::Sender::new(0),
            dropped_hints: AtomicU64::new(0),
        }
    }

    pub(crate) fn status(&self) -> watch::Receiver<BusStatus> {
        self.status.subscribe()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.status.borrow().is_connected()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.status.borrow().state == BusState::Closed
    }

    /// Resolves when the bus is closed.
    pub(crate) async fn closed(&self) {
        let mut status = self.status.subscribe();
        // The sender lives as long as `self`, so waiting ends only with the state itself.
        drop(
            status
                .wait_for(|status| status.state == BusState::Closed)
                .await,
        );
    }

    /// Messages flow again; some may have been missed.
    pub(crate) fn connected(&self) {
        self.change(|status| {
            status.state = BusState::Connected;
            status.generation += 1;
        });
    }

    /// Messages were missed on a standing link.
    pub(crate) fn missed(&self) {
        self.change(|status| status.generation += 1);
    }

    /// The link broke.
    pub(crate) fn lost(&self) {
        self.change(|status| {
            status.state = BusState::Disconnected {
                reason: DisconnectReason::LinkLost,
            };
        });
        self.losses.send_modify(|losses| *losses += 1);
    }

    /// An attempt to connect failed.
    pub(crate) fn attempt_failed(&self, reason: DisconnectReason) {
        self.change(|status| status.state = BusState::Disconnected { reason });
    }

    pub(crate) fn close(&self) {
        self.change(|status| status.state = BusState::Closed);
        self.losses.send_modify(|losses| *losses += 1);
    }

    /// `Closed` is final.
    fn change(&self, change: impl FnOnce(&mut BusStatus)) {
        self.status.send_if_modified(|status| {
            if status.state == BusState::Closed {
                return false;
            }
            let before = status.clone();
            change(status);
            before != *status
        });
    }

    /// Runs `work` until it ends or the link breaks.
    pub(crate) async fn unless_lost<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, BarrierError> {
        let mut losses = self.losses.subscribe();
        tokio::select! {
            biased;
            done = work => Ok(done),
            _ = losses.changed() => Err(BarrierError::Disconnected),
        }
    }

    pub(crate) fn hint_dropped(&self) {
        self.dropped_hints.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped_hints(&self) -> u64 {
        self.dropped_hints.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_rises_with_every_chance_of_a_missed_message() {
        let link = Link::new(BusState::Connecting);
        let generation = || link.status().borrow().generation;
        link.connected();
        assert_eq!(generation(), 1);
        link.missed();
        assert_eq!(generation(), 2);
        link.lost();
        assert_eq!(generation(), 2);
        link.connected();
        assert_eq!(generation(), 3);
    }

    #[test]
    fn closed_is_final() {
        let link = Link::new(BusState::Connecting);
        link.close();
        link.connected();
        link.lost();
        assert_eq!(link.status().borrow().state, BusState::Closed);
    }
}
