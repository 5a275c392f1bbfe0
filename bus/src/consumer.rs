//! Subscriptions: they outlive the link and the client that carries them.

use std::sync::Arc;

use async_nats::{Client, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;

use crate::connection::{self, NatsBus, Shared};
use crate::envelope::Message;
use crate::error::SubscribeError;
use crate::memory::MemorySubscription;
use crate::subject;

/// Messages of one subject or filter. Dropping it unsubscribes.
///
/// Messages sent while there is no link are missed; the rise of
/// [`BusStatus::generation`](crate::BusStatus::generation) tells.
pub struct Subscription(pub(crate) Kind);

pub(crate) enum Kind {
    Nats(NatsSubscription),
    Memory(MemorySubscription),
}

impl Subscription {
    /// The next message; `None` once the bus is closed and everything before that was taken. Cancel-safe.
    pub async fn next(&mut self) -> Option<Message> {
        match &mut self.0 {
            Kind::Nats(subscription) => subscription.next().await,
            Kind::Memory(subscription) => subscription.next().await,
        }
    }
}

pub(crate) struct NatsSubscription {
    shared: Arc<Shared>,
    clients: watch::Receiver<Client>,
    subscriber: Subscriber,
    filter: String,
    group: Option<String>,
}

impl NatsBus {
    pub(crate) async fn subscribe(
        &self,
        filter: &str,
        group: Option<&str>,
    ) -> Result<NatsSubscription, SubscribeError> {
        check_filter(filter, group)?;
        if self.shared.link.is_closed() {
            return Err(SubscribeError::Closed);
        }
        let mut clients = self.shared.clients.subscribe();
        let client = clients.borrow_and_update().clone();
        let (filter, group) = (filter.to_owned(), group.map(str::to_owned));
        let asked = ask(&client, &filter, group.as_deref());
        let subscriber = tokio::time::timeout(self.shared.timeout, asked)
            .await
            .map_err(|_| SubscribeError::TimedOut)??;
        Ok(NatsSubscription {
            shared: self.shared.clone(),
            clients,
            subscriber,
            filter,
            group,
        })
    }
}

impl NatsSubscription {
    async fn next(&mut self) -> Option<Message> {
        loop {
            let message = tokio::select! {
                biased;
                message = self.subscriber.next() => message,
                () = self.shared.link.closed() => return self.left_over(),
            };
            match message {
                Some(message) => return Some(Message::from_nats(message)),
                None => self.renew().await?,
            }
        }
    }

    fn left_over(&mut self) -> Option<Message> {
        let waiting = self.subscriber.next().now_or_never().flatten();
        waiting.map(Message::from_nats)
    }

    /// Waits for the client that replaces a dead one and subscribes there; `None` once the bus is closed.
    async fn renew(&mut self) -> Option<()> {
        loop {
            tokio::select! {
                changed = self.clients.changed() => changed.ok()?,
                () = self.shared.link.closed() => return None,
            }
            let client = self.clients.borrow_and_update().clone();
            if let Ok(subscriber) = ask(&client, &self.filter, self.group.as_deref()).await {
                self.subscriber = subscriber;
                // The supervisor may have confirmed the new connection before this subscription was made. If this
                // round trip fails the link is gone again, and the next connection raises the generation.
                let shared = &self.shared;
                if connection::round_trip(&client, &shared.link, shared.timeout)
                    .await
                    .is_ok()
                {
                    shared.link.missed();
                }
                return Some(());
            }
        }
    }
}

/// An ill-formed filter would break the protocol and with it the link of everybody in this process.
pub(crate) fn check_filter(filter: &str, group: Option<&str>) -> Result<(), SubscribeError> {
    let bad_group = group.filter(|group| !subject::is_literal(group));
    match (subject::is_filter(filter), bad_group) {
        (true, None) => Ok(()),
        (false, _) => Err(SubscribeError::Invalid(filter.to_owned())),
        (_, Some(group)) => Err(SubscribeError::Invalid(group.to_owned())),
    }
}

async fn ask(
    client: &Client,
    filter: &str,
    group: Option<&str>,
) -> Result<Subscriber, SubscribeError> {
    let asked = match group {
        Some(group) => {
            client
                .queue_subscribe(filter.to_owned(), group.to_owned())
                .await
        }
        None => client.subscribe(filter.to_owned()).await,
    };
    asked.map_err(|_| SubscribeError::Closed)
}
