//! A bus inside the process, for tests and for development without a server. It keeps the promises of the real one,
//! and on request breaks hints the way a real network does: it drops, repeats and reorders them by a seed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::config::SignalSettings;
use crate::consumer::check_filter;
use crate::envelope::{Headers, MESSAGE_ID, Message};
use crate::error::{BarrierError, RequestError, RespondError, SignalError, SubscribeError};
use crate::publisher::ReplyGuard;
use crate::signal::{Acker, DUPLICATE_WINDOW, Outgoing, Place, PublishAck, SignalDelivery};
use crate::status::{BusState, Link};
use crate::subject::{self, Subjects};

/// What a server takes by default.
const MAX_PAYLOAD: usize = 1 << 20;
const SUBSCRIPTION_CAPACITY: usize = 65_536;

/// A client of an in-process hub. Clones are the same client; [`join`](MemoryBus::join) makes another one.
#[derive(Clone)]
pub struct MemoryBus {
    hub: Arc<Hub>,
    client: Arc<MemoryClient>,
}

/// How hints suffer. Each number is a probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chaos {
    /// The same seed does the same to the same hints.
    pub seed: u64,
    /// A hint is lost.
    pub drop: f64,
    /// A hint arrives twice.
    pub repeat: f64,
    /// A hint arrives after the next one.
    pub reorder: f64,
}

struct MemoryClient {
    link: Arc<Link>,
}

impl Drop for MemoryClient {
    fn drop(&mut self) {
        self.link.close();
    }
}

struct Hub {
    state: Mutex<HubState>,
    /// Counts changes of the streams, so that whoever waits for a signal looks again.
    stored: watch::Sender<u64>,
    born: Instant,
}

#[derive(Default)]
struct HubState {
    next_id: u64,
    turn: usize,
    subscriptions: BTreeMap<u64, Member>,
    streams: HashMap<String, Stream>,
    chaos: Option<(Chaos, StdRng)>,
    held_back: Option<Message>,
}

struct Member {
    filter: String,
    group: Option<String>,
    link: Arc<Link>,
    inbox: mpsc::Sender<Message>,
}

struct Stream {
    filter: String,
    settings: SignalSettings,
    last: u64,
    waiting: BTreeMap<u64, Stored>,
    known: HashMap<String, Instant>,
}

struct Stored {
    message: Message,
    nanos: i128,
    deliveries: u64,
    /// From when it may be delivered (again).
    due: Instant,
}

pub(crate) struct MemorySubscription {
    id: u64,
    hub: Arc<Hub>,
    link: Arc<Link>,
    messages: mpsc::Receiver<Message>,
}

impl Drop for MemorySubscription {
    fn drop(&mut self) {
        self.hub.lock().subscriptions.remove(&self.id);
    }
}

impl Default for MemoryBus {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBus {
    /// A new hub with one client.
    #[must_use]
    pub fn new() -> Self {
        let hub = Hub {
            state: Mutex::default(),
            stored: watch::Sender::new(0),
            born: Instant::now(),
        };
        Self::client_of(Arc::new(hub))
    }

    /// Another client of the same hub, with a link of its own.
    #[must_use]
    pub fn join(&self) -> Self {
        Self::client_of(self.hub.clone())
    }

    fn client_of(hub: Arc<Hub>) -> Self {
        let link = Arc::new(Link::new(BusState::Connecting));
        link.connected();
        Self {
            hub,
            client: Arc::new(MemoryClient { link }),
        }
    }

    /// Cuts or mends this client's link. While it is cut, what is sent to it is missed and what it sends is refused.
    pub fn set_connected(&self, connected: bool) {
        match (connected, self.link().is_connected()) {
            (true, false) => self.link().connected(),
            (false, true) => self.link().lost(),
            _ => {}
        }
    }

    /// Lets hints suffer from now on, those of every client; `None` ends it and delivers a hint that was held back.
    pub fn set_chaos(&self, chaos: Option<Chaos>) {
        let mut state = self.hub.lock();
        state.chaos = chaos.map(|chaos| (chaos, StdRng::seed_from_u64(chaos.seed)));
        if let Some(message) = state.held_back.take() {
            self.hub.deliver(&mut state, &message);
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.client.link
    }

    pub(crate) fn close(&self) {
        self.link().close();
    }

    pub(crate) fn barrier(&self) -> Result<(), BarrierError> {
        if self.link().is_connected() {
            Ok(())
        } else {
            Err(BarrierError::Disconnected)
        }
    }

    pub(crate) fn hint(&self, subject: &str, payload: Bytes) {
        let fits = subject::is_literal(subject) && payload.len() <= MAX_PAYLOAD;
        if !fits || !self.link().is_connected() {
            self.link().hint_dropped();
            return;
        }
        let message = Message {
            subject: subject.to_owned(),
            payload,
            ..Message::default()
        };
        let mut state = self.hub.lock();
        for message in state.suffer(message) {
            self.hub.deliver(&mut state, &message);
        }
    }

    pub(crate) fn subscribe(
        &self,
        filter: &str,
        group: Option<&str>,
    ) -> Result<MemorySubscription, SubscribeError> {
        check_filter(filter, group)?;
        if self.link().is_closed() {
            return Err(SubscribeError::Closed);
        }
        let (inbox, messages) = mpsc::channel(SUBSCRIPTION_CAPACITY);
        let mut state = self.hub.lock();
        let id = state.new_id();
        let member = Member {
            filter: filter.to_owned(),
            group: group.map(str::to_owned),
            link: self.link().clone(),
            inbox,
        };
        state.subscriptions.insert(id, member);
        Ok(MemorySubscription {
            id,
            hub: self.hub.clone(),
            link: self.link().clone(),
            messages,
        })
    }

    pub(crate) async fn request(
        &self,
        subject: &str,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Message, RequestError> {
        if self.link().is_closed() {
            return Err(RequestError::Closed);
        }
        if !subject::is_literal(subject) {
            return Err(RequestError::InvalidSubject(subject.to_owned()));
        }
        too_large(&Headers::new(), &payload)
            .map_err(|(bytes, limit)| RequestError::TooLarge { bytes, limit })?;
        if !self.link().is_connected() {
            return Err(RequestError::Disconnected);
        }
        let reply = format!("_INBOX.memory.{}", self.hub.lock().new_id());
        let mut answers = self
            .subscribe(&reply, None)
            .map_err(|_| RequestError::Closed)?;
        let message = Message {
            subject: subject.to_owned(),
            payload,
            reply: Some(reply),
            ..Message::default()
        };
        if self.hub.deliver(&mut self.hub.lock(), &message) == 0 {
            return Err(RequestError::NoResponders(subject.to_owned()));
        }
        let answer = tokio::time::timeout(timeout, answers.next());
        match self.link().unless_lost(answer).await {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Ok(None)) => Err(RequestError::Closed),
            Ok(Err(_)) => Err(RequestError::TimedOut(timeout)),
            Err(_) => Err(RequestError::Disconnected),
        }
    }

    pub(crate) fn respond(
        &self,
        message: &Message,
        headers: &Headers,
        payload: Bytes,
    ) -> Result<(), RespondError> {
        let guard = ReplyGuard::standard();
        let reply = guard.check(message)?;
        too_large(headers, &payload)
            .map_err(|(bytes, limit)| RespondError::TooLarge { bytes, limit })?;
        if !self.link().is_connected() {
            return Err(RespondError::Disconnected);
        }
        let answer = Message {
            subject: reply.to_owned(),
            headers: headers.clone(),
            payload,
            reply: None,
        };
        self.hub.deliver(&mut self.hub.lock(), &answer);
        Ok(())
    }
}

fn too_large(headers: &Headers, payload: &Bytes) -> Result<(), (usize, usize)> {
    let bytes = Message::wire_len(headers, payload);
    if bytes > MAX_PAYLOAD {
        Err((bytes, MAX_PAYLOAD))
    } else {
        Ok(())
    }
}

impl MemorySubscription {
    pub(crate) async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            biased;
            message = self.messages.recv() => message,
            () = self.link.closed() => self.messages.try_recv().ok(),
        }
    }
}

impl Hub {
    /// No code panics while it holds the lock, and no step leaves the state half done.
    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To each plain subscription, to one member of each queue group, and into the streams that take it in. Answers
    /// how many took it.
    fn deliver(&self, state: &mut HubState, message: &Message) -> usize {
        state.turn = state.turn.wrapping_add(1);
        let receivers = state.receivers(&message.subject);
        for member in &receivers {
            if member.inbox.try_send(message.clone()).is_err() {
                member.link.missed();
            }
        }
        let taken = receivers.len();
        let now = Instant::now();
        let captured = state
            .streams
            .values_mut()
            .filter(|stream| subject::matches(&stream.filter, &message.subject))
            .map(|stream| stream.store(message.clone(), now, self.born))
            .count();
        if captured > 0 {
            self.stored.send_modify(|changes| *changes += 1);
        }
        taken + captured
    }
}

impl HubState {
    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn receivers(&self, subject: &str) -> Vec<&Member> {
        let mut receivers = Vec::new();
        let mut groups: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
        let hearing = self.subscriptions.values().filter(|member| {
            member.link.is_connected() && subject::matches(&member.filter, subject)
        });
        for member in hearing {
            match &member.group {
                None => receivers.push(member),
                Some(group) => groups.entry(group).or_default().push(member),
            }
        }
        let chosen = groups
            .into_values()
            .map(|members| members[self.turn % members.len()]);
        receivers.extend(chosen);
        receivers
    }

    /// What becomes of a hint: nothing, itself, itself twice, itself later.
    fn suffer(&mut self, message: Message) -> Vec<Message> {
        let Some((chaos, dice)) = &mut self.chaos else {
            return vec![message];
        };
        let (lost, twice, late) = (
            dice.random_bool(chaos.drop),
            dice.random_bool(chaos.repeat),
            dice.random_bool(chaos.reorder),
        );
        let earlier = self.held_back.take();
        let mut now = Vec::new();
        if late && !lost {
            self.held_back = Some(message.clone());
        }
        if !lost && (!late || twice) {
            now.push(message.clone());
        }
        if !lost && !late && twice {
            now.push(message);
        }
        now.extend(earlier);
        now
    }
}

impl Stream {
    /// Answers whether it was known already.
    fn store(&mut self, message: Message, now: Instant, born: Instant) -> bool {
        self.known
            .retain(|_, since| now.duration_since(*since) < DUPLICATE_WINDOW);
        if let Some(id) = message.headers.get(MESSAGE_ID) {
            if self.known.contains_key(id) {
                return true;
            }
            self.known.insert(id.to_owned(), now);
        }
        self.last += 1;
        let stored = Stored {
            message,
            // Not the wall clock: within one hub this tells messages apart just as well.
            nanos: i128::try_from(now.duration_since(born).as_nanos()).unwrap_or(i128::MAX),
            deliveries: 0,
            due: now,
        };
        self.waiting.insert(self.last, stored);
        false
    }
}

/// The signal stream of a hub.
#[derive(Clone)]
pub(crate) struct MemorySignals {
    bus: MemoryBus,
    stream: String,
}

#[derive(Debug)]
pub(crate) struct MemoryAcker {
    signals: MemorySignals,
    sequence: u64,
}

impl std::fmt::Debug for MemorySignals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemorySignals").field(&self.stream).finish()
    }
}

impl MemorySignals {
    pub(crate) fn new(bus: MemoryBus, subjects: &Subjects) -> Self {
        Self {
            bus,
            stream: subjects.signal_stream(),
        }
    }

    pub(crate) fn ensure(
        &self,
        subjects: &Subjects,
        settings: &SignalSettings,
    ) -> Result<(), SignalError> {
        self.check_link()?;
        let mut state = self.bus.hub.lock();
        let stream = state
            .streams
            .entry(self.stream.clone())
            .or_insert_with(|| Stream {
                filter: subjects.signals(),
                settings: settings.clone(),
                last: 0,
                waiting: BTreeMap::new(),
                known: HashMap::new(),
            });
        if stream.settings.max_message_bytes != settings.max_message_bytes {
            return Err(SignalError::StreamDiffers {
                stream: self.stream.clone(),
                differences: vec![format!(
                    "max_msg_size is {}, wanted is {}",
                    stream.settings.max_message_bytes, settings.max_message_bytes
                )],
            });
        }
        stream.settings = settings.clone();
        Ok(())
    }

    pub(crate) async fn next_batch(
        &self,
        subjects: &Subjects,
        settings: &SignalSettings,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<SignalDelivery>, SignalError> {
        self.ensure(subjects, settings)?;
        let taking = self.take_within(subjects, max, Instant::now() + wait);
        let done = self.bus.link().unless_lost(taking).await;
        done.map_err(|_| SignalError::Disconnected)
    }

    async fn take_within(
        &self,
        subjects: &Subjects,
        max: usize,
        deadline: Instant,
    ) -> Vec<SignalDelivery> {
        let mut stored = self.bus.hub.stored.subscribe();
        loop {
            let (taken, next_due) = self.take(subjects, max);
            let now = Instant::now();
            if !taken.is_empty() || now >= deadline {
                return taken;
            }
            let look_again = next_due.map_or(deadline, |due| due.min(deadline));
            tokio::select! {
                // The hub lives as long as this client.
                changed = stored.changed() => drop(changed),
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// What is due, and when the next will be.
    fn take(&self, subjects: &Subjects, max: usize) -> (Vec<SignalDelivery>, Option<Instant>) {
        let now = Instant::now();
        let mut state = self.bus.hub.lock();
        let Some(stream) = state.streams.get_mut(&self.stream) else {
            return (Vec::new(), None);
        };
        let ack_wait = stream.settings.ack_wait;
        let due = stream
            .waiting
            .iter_mut()
            .filter(|(_, stored)| stored.due <= now);
        let taken = due
            .take(max)
            .map(|(sequence, stored)| {
                stored.due = now + ack_wait;
                stored.deliveries += 1;
                self.delivery(subjects, *sequence, stored)
            })
            .collect();
        let next_due = stream.waiting.values().map(|stored| stored.due).min();
        (taken, next_due)
    }

    fn delivery(&self, subjects: &Subjects, sequence: u64, stored: &Stored) -> SignalDelivery {
        let place = Place {
            stream: &self.stream,
            sequence,
            nanos: stored.nanos,
            deliveries: stored.deliveries,
        };
        let acker = Acker::Memory(MemoryAcker {
            signals: self.clone(),
            sequence,
        });
        SignalDelivery::new(subjects, stored.message.clone(), &place, acker)
    }

    pub(crate) fn publish(&self, outgoing: &Outgoing) -> Result<PublishAck, SignalError> {
        self.check_link()?;
        let hub = &self.bus.hub;
        let mut state = hub.lock();
        let stream = state
            .streams
            .get_mut(&self.stream)
            .ok_or_else(|| SignalError::NoStream(self.stream.clone()))?;
        let message = Message {
            subject: outgoing.subject.clone(),
            payload: outgoing.payload.clone(),
            headers: outgoing.headers.clone(),
            reply: None,
        };
        let duplicate = stream.store(message, Instant::now(), hub.born);
        drop(state);
        hub.stored.send_modify(|changes| *changes += 1);
        Ok(PublishAck { duplicate })
    }

    fn check_link(&self) -> Result<(), SignalError> {
        if self.bus.link().is_connected() {
            Ok(())
        } else {
            Err(SignalError::Disconnected)
        }
    }
}

impl MemoryAcker {
    pub(crate) fn ack(&self) -> Result<(), SignalError> {
        self.settle(|stream, sequence| drop(stream.waiting.remove(&sequence)))
    }

    pub(crate) fn nak(&self, delay: Duration) -> Result<(), SignalError> {
        let due = Instant::now() + delay;
        self.settle(|stream, sequence| {
            if let Some(stored) = stream.waiting.get_mut(&sequence) {
                stored.due = due;
            }
        })
    }

    fn settle(&self, change: impl FnOnce(&mut Stream, u64)) -> Result<(), SignalError> {
        self.signals.check_link()?;
        let hub = &self.signals.bus.hub;
        if let Some(stream) = hub.lock().streams.get_mut(&self.signals.stream) {
            change(stream, self.sequence);
        }
        hub.stored.send_modify(|changes| *changes += 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn heard(chaos: Chaos) -> Vec<u8> {
        let bus = MemoryBus::new();
        let mut subscription = bus.subscribe("a", None).unwrap();
        bus.set_chaos(Some(chaos));
        for n in 0..100 {
            bus.hint("a", Bytes::from(vec![n]));
        }
        bus.set_chaos(None);
        bus.close();
        let mut heard = Vec::new();
        while let Some(message) = subscription.next().await {
            heard.push(message.payload[0]);
        }
        heard
    }

    #[tokio::test]
    async fn chaos_drops_repeats_and_reorders_by_its_seed() {
        let all: Vec<u8> = (0..100).collect();
        assert_eq!(heard(Chaos::default()).await, all);
        let drop = Chaos {
            drop: 0.3,
            ..Chaos::default()
        };
        let dropped = heard(drop).await;
        assert!(dropped.len() < 100 && dropped.is_sorted(), "{dropped:?}");
        let repeat = Chaos {
            repeat: 0.3,
            ..Chaos::default()
        };
        let mut repeated = heard(repeat).await;
        assert!(repeated.len() > 100);
        repeated.dedup();
        assert_eq!(repeated, all);
        let reorder = Chaos {
            reorder: 0.3,
            ..Chaos::default()
        };
        let mut reordered = heard(reorder).await;
        assert!(!reordered.is_sorted());
        reordered.sort_unstable();
        assert_eq!(reordered, all);
        assert_eq!(heard(drop).await, dropped);
    }

    #[tokio::test]
    async fn a_cut_link_misses_messages_and_the_generation_tells() {
        let (a, b) = {
            let a = MemoryBus::new();
            let b = a.join();
            (a, b)
        };
        let mut subscription = b.subscribe("x", None).unwrap();
        let generation = || b.link().status().borrow().generation;
        let before = generation();
        b.set_connected(false);
        a.hint("x", Bytes::from_static(b"missed"));
        b.hint("x", Bytes::new());
        assert_eq!(b.link().dropped_hints(), 1);
        b.set_connected(true);
        assert_eq!(generation(), before + 1);
        a.hint("x", Bytes::from_static(b"heard"));
        assert_eq!(subscription.next().await.unwrap().payload, "heard");
    }

    #[tokio::test]
    async fn a_request_ends_when_the_link_is_cut() {
        let a = MemoryBus::new();
        let b = a.join();
        let _silent = a.subscribe("slow", None).unwrap();
        let asked = b.request("slow", Bytes::new(), Duration::from_secs(60));
        let (answer, ()) = tokio::join!(biased; asked, async { b.set_connected(false) });
        assert_eq!(answer, Err(RequestError::Disconnected));
    }
}
