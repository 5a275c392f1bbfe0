//! A shard: one event loop that holds a part of the resident runs. Everything that happens to a run happens here, one
//! message after another, so a run needs no locks; only its append and its effects happen elsewhere.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_schema::activity::{Attempt, Completion as ActivityCompletion};
use continuum_schema::event::Outcome as EffectOutcome;
use continuum_schema::journal::CompletedActivity;
use continuum_schema::lease::{self, ClaimedRun, ReleaseOutcome};
use continuum_schema::mailbox::{self, Mailbox};
use continuum_schema::{EffectId, Event, Lease};
use futures::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::alarms::Alarms;
use super::core::{Advancing, Core};
use super::journal::QueuedAppend;
use super::resident::{Action, Cancel, Outcome, Resident, Standing, Stuck};
use super::service::panic_text;
use crate::error::{ActivityError, kind};
use crate::replay::Blocked;
use crate::retry::Backoff;

/// The most messages that are taken before other tasks get their turn.
const MESSAGES_MAX: usize = 256;

/// The most mailboxes of one read.
const MAILBOXES_MAX: usize = 256;

/// How often idle runs are looked for.
const EVICT_INTERVAL: Duration = Duration::from_secs(1);

/// A run is not evicted for lack of room before it has been idle this long.
const IDLE_MIN: Duration = Duration::from_millis(500);

/// How long a wake waits for the claim of its run to arrive.
const EARLY_WAKE_MAX: Duration = Duration::from_secs(10);

/// The most wakes that wait so; those beyond are found by a catch-up pass.
const EARLY_WAKES_MAX: usize = 10_000;

/// The first wait before a parked run is tried again; it doubles with each time.
const BLOCK_RETRY_MS: i64 = 5_000;

/// The longest such wait.
const BLOCK_RETRY_MAX_MS: i64 = 600_000;

/// What can happen to a shard.
pub(crate) enum Message {
    /// A run was claimed for it.
    Claimed {
        session: Uuid,
        run: Box<ClaimedRun>,
        advancing: Advancing,
    },
    /// A run may have new mail.
    Wake(Uuid),
    /// Mailboxes were read; `asked` with the epochs at which the read began.
    Mail {
        session: Uuid,
        asked: HashMap<Uuid, u64>,
        mailboxes: Vec<Mailbox>,
    },
    /// A step ended.
    Step {
        lease: Lease,
        effect: EffectId,
        outcome: EffectOutcome,
    },
    /// An activity ended in this worker. If the run is not here, the completion goes to its mailbox.
    Activity {
        session: Uuid,
        completion: ActivityCompletion,
        slot: OwnedSemaphorePermit,
    },
    /// An activity left this worker without ending.
    ActivityLeft { attempt: Attempt },
    /// An append was answered.
    Appended { lease: Lease, answer: Answer },
    /// A page of a catch-up pass: leases of this worker and their wake counters.
    CatchUp {
        session: Uuid,
        page: Arc<Vec<(Lease, i64)>>,
        done: oneshot::Sender<CaughtUp>,
    },
    /// Which leases have an engine here?
    Held(oneshot::Sender<Vec<(Lease, Held)>>),
    /// Postgres says that this lease is somebody else's.
    Reap(Lease),
    /// Postgres says that this lease is this worker's, and no engine has it.
    GiveBack(Lease),
    /// There is no room for further runs.
    MakeRoom(usize),
    /// Does this event loop go round? Answered at once.
    Ask(oneshot::Sender<()>),
    /// Everything in memory is void.
    SessionLost,
    /// Give back every run as soon as it is idle; answers when none is left.
    Drain {
        force: bool,
        done: oneshot::Sender<()>,
    },
}

/// What a page of a catch-up pass came to.
#[derive(Debug, Default)]
pub(crate) struct CaughtUp {
    /// Leases that have an engine here.
    pub(crate) matched: usize,
    /// Chains of those whose engine had missed a wake.
    pub(crate) woken: Vec<Uuid>,
}

/// How a lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Its engine has nothing under way.
    Idle,
    /// What becomes of it is being decided in Postgres.
    Busy,
}

/// What came of an append.
pub(crate) enum Answer {
    /// It is in the journal.
    Committed,
    /// The lease or the position is somebody else's, or the engine's picture of its mail and activities is stale.
    Refused,
    /// Postgres will not take it, for a reason that lies in the data.
    Failed(String),
}

/// The addresses of a worker's shards.
pub(crate) struct Shards {
    senders: Vec<mpsc::UnboundedSender<Message>>,
    next_for_room: AtomicUsize,
}

impl Shards {
    #[expect(
        clippy::disallowed_methods,
        reason = "each message answers something that was counted when it began"
    )]
    pub(crate) fn new(count: usize) -> (Self, Vec<mpsc::UnboundedReceiver<Message>>) {
        let (senders, receivers) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let shards = Self {
            senders,
            next_for_room: AtomicUsize::new(0),
        };
        (shards, receivers)
    }

    /// Sends to the shard that holds a run.
    pub(crate) fn send(&self, run_id: Uuid, message: Message) {
        // A shard is gone only when the worker stops; nothing of this message matters then.
        drop(self.senders[self.place(run_id)].send(message));
    }

    pub(crate) fn place(&self, run_id: Uuid) -> usize {
        usize::from(run_id.as_bytes()[15]) % self.senders.len()
    }

    pub(crate) fn broadcast(&self, message: impl Fn() -> Message) {
        for sender in &self.senders {
            drop(sender.send(message()));
        }
    }

    /// Asks each event loop for a sign of life.
    pub(crate) fn ask(&self) -> Vec<oneshot::Receiver<()>> {
        let ask = |sender: &mpsc::UnboundedSender<Message>| {
            let (answer, answered) = oneshot::channel();
            drop(sender.send(Message::Ask(answer)));
            answered
        };
        self.senders.iter().map(ask).collect()
    }

    /// Asks each event loop what it holds.
    pub(crate) fn ask_held(&self) -> Vec<oneshot::Receiver<Vec<(Lease, Held)>>> {
        let ask = |sender: &mpsc::UnboundedSender<Message>| {
            let (answer, answered) = oneshot::channel();
            drop(sender.send(Message::Held(answer)));
            answered
        };
        self.senders.iter().map(ask).collect()
    }

    /// Shows a page of a catch-up pass to all event loops.
    pub(crate) async fn catch_up(&self, session: Uuid, page: Vec<(Lease, i64)>) -> CaughtUp {
        let page = Arc::new(page);
        let shown = self.senders.iter().map(|sender| {
            let (done, answer) = oneshot::channel();
            let page = Arc::clone(&page);
            drop(sender.send(Message::CatchUp {
                session,
                page,
                done,
            }));
            answer
        });
        let shown: Vec<_> = shown.collect();
        let mut sum = CaughtUp::default();
        for answer in shown {
            // An event loop that has ended holds nothing.
            let CaughtUp { matched, woken } = answer.await.unwrap_or_default();
            sum.matched += matched;
            sum.woken.extend(woken);
        }
        sum
    }

    pub(crate) fn session_lost(&self) {
        self.broadcast(|| Message::SessionLost);
    }

    pub(crate) fn make_room(&self, count: usize) {
        let place = self.next_for_room.fetch_add(1, Ordering::Relaxed) % self.senders.len();
        drop(self.senders[place].send(Message::MakeRoom(count)));
    }
}

/// One event loop and the runs that it holds.
pub(crate) struct Shard {
    core: Arc<Core>,
    place: usize,
    inbox: mpsc::UnboundedReceiver<Message>,
    journal: mpsc::UnboundedSender<QueuedAppend>,
    residents: HashMap<Uuid, Resident>,
    /// Timers of residents. One whose run or timer is gone is passed over.
    alarms: Alarms,
    /// Runs that have something to do.
    ready: Vec<Uuid>,
    /// Runs whose mailbox is to be read.
    mail_wanted: HashSet<Uuid>,
    mail_reading: bool,
    /// Wakes of runs that are not here: their claim may still be on its way from the dispatcher, and the mail is newer
    /// than what that claim read.
    early_wakes: HashMap<Uuid, Instant>,
    /// Runs that are being ended without an engine.
    cancelling: HashMap<Uuid, Standing>,
    drain: Option<Drain>,
}

struct Drain {
    force: bool,
    done: Vec<oneshot::Sender<()>>,
    /// The releases that are under way.
    releases: TaskTracker,
}

impl Shard {
    pub(crate) fn new(
        core: Arc<Core>,
        place: usize,
        inbox: mpsc::UnboundedReceiver<Message>,
        journal: mpsc::UnboundedSender<QueuedAppend>,
    ) -> Self {
        Self {
            core,
            place,
            inbox,
            journal,
            residents: HashMap::new(),
            alarms: Alarms::default(),
            ready: Vec::new(),
            mail_wanted: HashSet::new(),
            mail_reading: false,
            early_wakes: HashMap::new(),
            cancelling: HashMap::new(),
            drain: None,
        }
    }

    /// Runs until every sender is gone or the worker stops. The caller switches tokio's cooperative budget off: with a
    /// spent budget, tokio's own primitives inside of workflow code would defer their wake-ups out of the poll.
    pub(crate) async fn run(mut self) {
        let stop = self.core.stop.clone();
        let mut batch = Vec::with_capacity(MESSAGES_MAX);
        let mut evict_at = Instant::now() + EVICT_INTERVAL;
        loop {
            let next = self.next_timer().min(evict_at);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                count = self.inbox.recv_many(&mut batch, MESSAGES_MAX) => {
                    if count == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(next.into()) => {}
            }
            for message in batch.drain(..) {
                self.take(message);
            }
            self.fire_timers();
            if evict_at <= Instant::now() {
                self.evict_waiting();
                self.forget_alarms();
                self.early_wakes
                    .retain(|_, heard| heard.elapsed() < EARLY_WAKE_MAX);
                evict_at = Instant::now() + EVICT_INTERVAL;
            }
            self.turns();
            self.read_mail();
            self.drained();
            tokio::task::yield_now().await;
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Claimed {
                session,
                run,
                advancing,
            } => self.claimed(session, *run, advancing),
            Message::Wake(run_id) => self.want_mail(run_id),
            Message::Mail {
                session,
                asked,
                mailboxes,
            } => self.mail_read(session, &asked, mailboxes),
            Message::Step {
                lease,
                effect,
                outcome,
            } => {
                if let Some(resident) = self.current(&lease) {
                    resident.step_ended(effect, outcome);
                    self.ready.push(lease.run_id);
                }
            }
            Message::Activity {
                session,
                completion,
                slot,
            } => self.activity_ended(session, completion, slot),
            Message::ActivityLeft { attempt } => {
                if let Some(resident) = self.residents.get_mut(&attempt.run_id) {
                    resident.activity_left(attempt.effect);
                    resident.count(&self.core);
                }
            }
            Message::Appended { lease, answer } => self.appended(lease, answer),
            // Who asked may have stopped waiting, here and below.
            Message::CatchUp {
                session,
                page,
                done,
            } => drop(done.send(self.catch_up(session, &page))),
            Message::Held(answer) => drop(answer.send(self.held())),
            Message::Reap(lease) => self.reap(&lease),
            Message::GiveBack(lease) => self.give_back(lease),
            Message::MakeRoom(count) => self.make_room(count),
            Message::Ask(answer) => drop(answer.send(())),
            Message::SessionLost => self.session_lost(),
            Message::Drain { force, done } => {
                let drain = self.drain.get_or_insert(Drain {
                    force: false,
                    done: Vec::new(),
                    releases: TaskTracker::new(),
                });
                drain.force |= force;
                drain.done.push(done);
            }
        }
    }

    /// The run, if it is still held under this lease.
    fn current(&mut self, lease: &Lease) -> Option<&mut Resident> {
        self.residents
            .get_mut(&lease.run_id)
            .filter(|resident| resident.lease == *lease)
    }

    // ---- runs come and go ------------------------------------------------------------------------------------------

    fn claimed(&mut self, session: Uuid, run: ClaimedRun, advancing: Advancing) {
        if !self.core.is_current(session) {
            self.core.residents_changed(-1);
            return;
        }
        // A newer claim of a run that is here already voids the old engine.
        self.remove(run.lease.run_id);
        let standing = Standing::of(&run);
        let cancel = Cancel::asked(&run);
        let core = Arc::clone(&self.core);
        let loaded = if run.quarantined {
            Err(Stuck::Quarantined)
        } else {
            Resident::load(&core, run, advancing)
        };
        match (loaded, cancel) {
            (Ok(resident), _) => self.admit(resident),
            (Err(_), Some(cancel)) => {
                self.core.residents_changed(-1);
                self.cancel_unloaded(session, standing, cancel);
            }
            (Err(stuck), None) => {
                self.core.residents_changed(-1);
                self.park(standing, &stuck);
            }
        }
    }

    fn admit(&mut self, resident: Resident) {
        let run_id = resident.lease.run_id;
        for (effect, fire_at) in &resident.timers {
            let wait = self.core.clock.until(*fire_at);
            self.alarms.set(wait, *fire_at, run_id, *effect);
        }
        self.residents.insert(run_id, resident);
        self.ready.push(run_id);
        if self.early_wakes.remove(&run_id).is_some() {
            self.want_mail(run_id);
        }
    }

    /// A run that can't go on can still be cancelled: its last event follows the history, which is not looked at.
    fn cancel_unloaded(&mut self, session: Uuid, standing: Standing, cancel: Cancel) {
        let lease = standing.lease;
        self.cancelling.insert(lease.run_id, standing);
        let append = cancel.append(lease, self.core.clock.now());
        // The writer is gone only when the worker stops.
        drop(self.journal.send(QueuedAppend { session, append }));
    }

    fn remove(&mut self, run_id: Uuid) -> Option<Resident> {
        let resident = self.residents.remove(&run_id)?;
        self.core.residents_changed(-1);
        Some(resident)
    }

    /// Parks a run that is here.
    fn remove_stuck(&mut self, run_id: Uuid, stuck: &Stuck) {
        if let Some(resident) = self.remove(run_id) {
            self.park(resident.standing(), stuck);
        }
    }

    fn session_lost(&mut self) {
        let count = self.residents.len();
        self.residents.clear();
        self.core
            .residents_changed(-isize::try_from(count).unwrap_or(0));
        self.alarms.clear();
        self.ready.clear();
        self.mail_wanted.clear();
        self.early_wakes.clear();
        self.cancelling.clear();
    }

    /// Puts a run that can't go on where people see it, and nobody claims it before its time.
    fn park(&self, standing: Standing, stuck: &Stuck) {
        let Some(session) = self.core.session() else {
            return;
        };
        let Standing { lease, wake, .. } = standing;
        let core = Arc::clone(&self.core);
        let (reason, detail, retry_ms) = parked(standing, stuck);
        core.metrics.runs.blocked.inc();
        tracing::error!(run_id = %lease.run_id, reason, %detail, "run.blocked");
        tokio::spawn(async move {
            let mut backoff = Backoff::new(Duration::from_secs(1));
            while core.is_current(session) {
                let held = (&lease, wake);
                match lease::block(&core.database, session, held, reason, &detail, retry_ms).await {
                    Ok(ReleaseOutcome::Due) => return core.ring_ready(0),
                    Ok(_) => return,
                    Err(error) if error.is_transient() => tokio::time::sleep(backoff.next()).await,
                    Err(error) => {
                        tracing::error!(run_id = %lease.run_id, %error, "a blocked run could not be parked");
                        return;
                    }
                }
            }
        });
    }

    /// Runs that have waited long enough leave. Not those whose timer is due soon: no dispatcher knows of it yet, and it
    /// would be late.
    fn evict_waiting(&mut self) {
        let soon = self.core.config.poll_interval * 2;
        let clock = &self.core.clock;
        let rings_soon = |r: &Resident| r.timers.values().any(|at| clock.until(*at) <= soon);
        let idle = self.idle(self.core.config.idle_max);
        let leaving = idle
            .into_iter()
            .filter(|(_, run_id)| !self.residents.get(run_id).is_some_and(rings_soon))
            .collect();
        self.evict(leaving);
    }

    /// The runs that have waited longest leave, so that the dispatcher can go on.
    fn make_room(&mut self, count: usize) {
        let mut idle = self.idle(IDLE_MIN);
        if idle.len() > count {
            idle.sort_unstable();
            idle.truncate(count);
        }
        let room = !idle.is_empty();
        self.evict(idle);
        if room {
            self.core.runs_due.notify_one();
        }
    }

    /// Runs that have nothing to do, and since when.
    fn idle(&self, idle_for: Duration) -> Vec<(Instant, Uuid)> {
        if self.drain.is_some() {
            return Vec::new();
        }
        let now = Instant::now();
        let idle = self
            .residents
            .iter()
            .filter(|(_, r)| now.duration_since(r.active_at) >= idle_for && r.is_idle());
        idle.map(|(run_id, r)| (r.active_at, *run_id)).collect()
    }

    fn evict(&mut self, idle: Vec<(Instant, Uuid)>) {
        let mut leases = Vec::new();
        for (_, run_id) in idle {
            match self.residents.get_mut(&run_id) {
                // It leaves when it has been idle once more.
                Some(resident) if resident.is_unwritten() => {
                    resident.write_begin();
                    self.ready.push(run_id);
                }
                _ => leases.extend(self.remove(run_id).map(|r| (r.lease, r.wake))),
            }
        }
        self.release(leases);
    }

    /// Gives leases back; a run whose counter moved meanwhile stays due.
    fn release(&self, leases: Vec<(Lease, i64)>) {
        let Some(session) = self.core.session().filter(|_| !leases.is_empty()) else {
            return;
        };
        tokio::spawn(release(Arc::clone(&self.core), session, leases));
    }

    /// Gives back what can be given back while the worker drains.
    fn drained(&mut self) {
        let Some(drain) = &self.drain else { return };
        let force = drain.force;
        let releases = drain.releases.clone();
        let free: Vec<Uuid> = self
            .residents
            .iter()
            .filter(|(_, r)| {
                if force {
                    !r.is_in_flight()
                } else {
                    r.is_idle()
                }
            })
            .map(|(run_id, _)| *run_id)
            .collect();
        let leases: Vec<(Lease, i64)> = free
            .into_iter()
            .filter_map(|run_id| self.remove(run_id))
            // An input that was not taken must not be missed: with a counter that can't match, the run stays due.
            .map(|r| (r.lease, if r.is_idle() { r.wake } else { -1 }))
            .collect();
        let done = if self.residents.is_empty() {
            self.drain
                .as_mut()
                .map(|d| std::mem::take(&mut d.done))
                .unwrap_or_default()
        } else {
            Vec::new()
        };
        let Some(session) = self.core.session() else {
            return;
        };
        if !leases.is_empty() {
            releases.spawn(release(Arc::clone(&self.core), session, leases));
        }
        if done.is_empty() {
            return;
        }
        tokio::spawn(async move {
            releases.close();
            releases.wait().await;
            for done in done {
                if done.send(()).is_err() {
                    tracing::debug!("whoever asked for the drain has stopped waiting");
                }
            }
        });
    }

    // ---- inputs ----------------------------------------------------------------------------------------------------

    fn want_mail(&mut self, run_id: Uuid) {
        if let Some(resident) = self.residents.get_mut(&run_id) {
            resident.mail_wanted = true;
            self.mail_wanted.insert(run_id);
        } else if self.early_wakes.len() < EARLY_WAKES_MAX {
            self.early_wakes.insert(run_id, Instant::now());
        }
    }

    /// Reads the mailboxes that are wanted, all in one round trip, one read at a time.
    fn read_mail(&mut self) {
        let Some(session) = self.core.session() else {
            return;
        };
        if self.mail_reading || self.mail_wanted.is_empty() {
            return;
        }
        let wanted: Vec<Uuid> = self
            .mail_wanted
            .iter()
            .copied()
            .take(MAILBOXES_MAX)
            .collect();
        let mut asked = HashMap::new();
        for run_id in wanted {
            self.mail_wanted.remove(&run_id);
            if let Some(resident) = self.residents.get_mut(&run_id) {
                asked.insert(resident.lease.chain_id, resident.mail_epoch);
            }
        }
        if asked.is_empty() {
            return;
        }
        self.mail_reading = true;
        let core = Arc::clone(&self.core);
        let place = self.place;
        tokio::spawn(async move {
            let chains: Vec<Uuid> = asked.keys().copied().collect();
            let mut backoff = Backoff::new(Duration::from_secs(1));
            let mailboxes = loop {
                if !core.is_current(session) {
                    break Vec::new();
                }
                match mailbox::read(&core.database, session, &chains).await {
                    Ok(mailboxes) => break mailboxes,
                    Err(error) => {
                        tracing::debug!(%error, "mailboxes could not be read");
                        tokio::time::sleep(backoff.next()).await;
                    }
                }
            };
            let message = Message::Mail {
                session,
                asked,
                mailboxes,
            };
            drop(core.shards.senders[place].send(message));
        });
    }

    fn mail_read(&mut self, session: Uuid, asked: &HashMap<Uuid, u64>, mailboxes: Vec<Mailbox>) {
        self.mail_reading = false;
        if !self.core.is_current(session) {
            return;
        }
        for chain_id in asked.keys() {
            let wanted_again = self.mail_wanted.contains(chain_id);
            if let Some(resident) = self.by_chain(*chain_id) {
                resident.mail_wanted = wanted_again;
            }
        }
        for mailbox in mailboxes {
            let chain_id = mailbox.chain_id;
            let Some(epoch) = asked.get(&chain_id).copied() else {
                continue;
            };
            let Some(resident) = self.by_chain(chain_id) else {
                continue;
            };
            let run_id = resident.lease.run_id;
            match resident.take_mailbox(mailbox, epoch) {
                Ok(()) => self.ready.push(run_id),
                Err(stuck) => self.remove_stuck(run_id, &stuck),
            }
        }
    }

    /// A chain's current run. Until a run continues as new, both have one id.
    fn by_chain(&mut self, chain_id: Uuid) -> Option<&mut Resident> {
        self.residents.get_mut(&chain_id)
    }

    fn activity_ended(
        &mut self,
        session: Uuid,
        completion: ActivityCompletion,
        slot: OwnedSemaphorePermit,
    ) {
        let attempt = completion.attempt;
        let here = self.core.is_current(session)
            && self
                .residents
                .get(&attempt.run_id)
                .is_some_and(|resident| resident.is_pending(attempt.effect));
        if !here {
            if let Some(resident) = self.residents.get_mut(&attempt.run_id) {
                resident.activity_left(attempt.effect);
            }
            self.core.activities.post(session, completion, slot);
            return;
        }
        self.core.activities.free([slot]);
        let Event::ActivityCompleted { outcome, .. } = completion.event else {
            return;
        };
        if let Some(resident) = self.residents.get_mut(&attempt.run_id) {
            let completed = CompletedActivity {
                effect: attempt.effect,
                attempt: attempt.attempt,
                result: completion.result,
            };
            resident.activity_ended(completed, outcome);
            self.ready.push(attempt.run_id);
        }
    }

    fn next_timer(&self) -> Instant {
        let wait = self.alarms.wait(&self.core.clock);
        let wait = wait.unwrap_or(EVICT_INTERVAL);
        Instant::now() + wait.min(EVICT_INTERVAL)
    }

    fn forget_alarms(&mut self) {
        let residents = &self.residents;
        let live = residents.values().map(|r| r.timers.len()).sum();
        self.alarms.compact(live, |fire_at, run_id, effect| {
            residents
                .get(&run_id)
                .is_some_and(|r| r.timers.get(&effect) == Some(&fire_at))
        });
    }

    fn fire_timers(&mut self) {
        while let Some((fire_at, run_id, effect)) = self.alarms.ring(&self.core.clock) {
            let resident = self.residents.get_mut(&run_id);
            if let Some(resident) = resident.filter(|r| r.timers.get(&effect) == Some(&fire_at)) {
                resident.timer_due(effect);
                self.ready.push(run_id);
            }
        }
    }

    /// Reads the mail of runs whose wake counter has moved on.
    fn catch_up(&mut self, session: Uuid, page: &[(Lease, i64)]) -> CaughtUp {
        let mut caught_up = CaughtUp::default();
        if !self.core.is_current(session) {
            return caught_up;
        }
        for (lease, wake) in page {
            let resident = self.residents.get(&lease.run_id);
            let Some(resident) = resident.filter(|resident| resident.lease == *lease) else {
                continue;
            };
            caught_up.matched += 1;
            if resident.wake != *wake {
                caught_up.woken.push(lease.chain_id);
                self.want_mail(lease.run_id);
            }
        }
        caught_up
    }

    fn held(&self) -> Vec<(Lease, Held)> {
        let engines = self.residents.values().map(|resident| {
            let held = match resident.is_in_flight() {
                true => Held::Busy,
                false => Held::Idle,
            };
            (resident.lease, held)
        });
        let cancelling = self
            .cancelling
            .values()
            .map(|standing| (standing.lease, Held::Busy));
        engines.chain(cancelling).collect()
    }

    /// Drops an engine whose lease is somebody else's: this is the zombie, and it never touches the other. An append
    /// that is under way by now will learn the same from Postgres.
    fn reap(&mut self, lease: &Lease) {
        if self
            .current(lease)
            .is_none_or(|resident| resident.is_in_flight())
        {
            return;
        }
        self.core.metrics.reconciler.reaped.inc();
        tracing::warn!(run_id = %lease.run_id, token = lease.token, "reconciler.reap: the lease of this run is somebody else's");
        self.remove(lease.run_id);
    }

    /// Gives back a lease that no engine has: the answer to its claim was lost.
    fn give_back(&mut self, lease: Lease) {
        if self.current(&lease).is_some() || self.cancelling.contains_key(&lease.run_id) {
            return;
        }
        tracing::warn!(run_id = %lease.run_id, "reconciler.give_back: a lease without an engine");
        self.release(vec![(lease, -1)]);
    }

    // ---- turns -----------------------------------------------------------------------------------------------------

    fn turns(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        for run_id in ready {
            self.turn(run_id);
        }
    }

    fn turn(&mut self, run_id: Uuid) {
        let Some(session) = self.core.session() else {
            return;
        };
        let core = Arc::clone(&self.core);
        let Some(resident) = self.residents.get_mut(&run_id) else {
            return;
        };
        core.metrics.runs.turns.inc();
        resident.active_at = Instant::now();
        let lease = resident.lease;
        match resident.turn(&core) {
            Ok(Outcome::Idle) => {}
            Ok(Outcome::Act(actions)) => self.act(session, lease, actions),
            Ok(Outcome::Append(append)) => {
                // The writer is gone only when the worker stops.
                drop(self.journal.send(QueuedAppend {
                    session,
                    append: *append,
                }));
            }
            Err(stuck) => self.remove_stuck(run_id, &stuck),
        }
        if let Some(resident) = self.residents.get_mut(&run_id) {
            resident.count(&core);
        }
    }

    fn appended(&mut self, lease: Lease, answer: Answer) {
        let cancelling = self.cancelling.get(&lease.run_id).copied();
        if let Some(standing) = cancelling.filter(|s| s.lease == lease) {
            self.cancelling.remove(&lease.run_id);
            match answer {
                Answer::Committed => self.tell_end(lease.run_id),
                Answer::Refused => self.release(vec![(lease, -1)]),
                Answer::Failed(reason) => self.park(standing, &Stuck::Refused(reason)),
            }
            return;
        }
        let Some(resident) = self.current(&lease) else {
            return;
        };
        match answer {
            Answer::Committed => {
                let actions = resident.committed();
                if let Some(session) = self.core.session() {
                    self.act(session, lease, actions);
                }
                self.ready.push(lease.run_id);
            }
            // If the lease is still ours, somebody must rebuild the run at once; if not, giving it back does nothing.
            Answer::Refused => {
                self.remove(lease.run_id);
                self.release(vec![(lease, -1)]);
            }
            Answer::Failed(reason) => self.remove_stuck(lease.run_id, &Stuck::Refused(reason)),
        }
    }

    fn act(&mut self, session: Uuid, lease: Lease, actions: Vec<Action>) {
        let mut rung: Vec<String> = Vec::new();
        for action in actions {
            match action {
                Action::Step { effect, name, run } => self.start_step(lease, effect, name, run),
                Action::Activity { scheduled, slot } => {
                    let attempt = Attempt {
                        run_id: lease.run_id,
                        effect: scheduled.effect,
                        attempt: 1,
                    };
                    if let Some(resident) = self.residents.get_mut(&lease.run_id) {
                        resident.activity_started(scheduled.effect);
                        let namespace = resident.namespace.clone();
                        self.core
                            .activities
                            .start(&self.core, session, attempt, namespace, *scheduled, slot);
                    }
                }
                Action::Ring { queue } => {
                    if !rung.contains(&queue) {
                        self.core.activities.ring(&self.core, &queue);
                        rung.push(queue);
                    }
                }
                Action::Timer {
                    effect,
                    fire_at,
                    wait,
                } => {
                    if let Some(resident) = self.residents.get_mut(&lease.run_id) {
                        resident.timers.insert(effect, fire_at);
                        self.alarms.set(wait, fire_at, lease.run_id, effect);
                    }
                }
                Action::Ended => {
                    self.remove(lease.run_id);
                    self.tell_end(lease.run_id);
                }
            }
        }
    }

    fn tell_end(&self, run_id: Uuid) {
        self.core.metrics.runs.ended.inc();
        self.core
            .bus
            .hint(&self.core.subjects.closed(run_id), Bytes::new());
    }

    fn start_step(
        &mut self,
        lease: Lease,
        effect: EffectId,
        name: String,
        run: futures::future::BoxFuture<'static, Result<continuum_schema::Payload, ActivityError>>,
    ) {
        let Some(resident) = self.residents.get_mut(&lease.run_id) else {
            return;
        };
        let core = Arc::clone(&self.core);
        let task = tokio::spawn(async move {
            let outcome = step_outcome(&core, &name, AssertUnwindSafe(run).catch_unwind().await);
            let message = Message::Step {
                lease,
                effect,
                outcome,
            };
            core.shards.send(lease.run_id, message);
        });
        resident.step_started(effect, task.abort_handle());
    }
}

/// What a step gave, as it is journaled.
fn step_outcome(
    core: &Core,
    name: &str,
    ended: Result<Result<continuum_schema::Payload, ActivityError>, Box<dyn std::any::Any + Send>>,
) -> EffectOutcome {
    let max = core.config.limits.payload_bytes_max;
    let error = match ended {
        Ok(Ok(value)) if value.len() <= max => return EffectOutcome::Ok(value),
        Ok(Ok(value)) => ActivityError::permanent(
            kind::OVERSIZE,
            format!(
                "the result of step `{name}` has {} bytes; the limit is {max}",
                value.len()
            ),
        ),
        Ok(Err(error)) => error,
        Err(panic) => ActivityError::permanent(
            kind::PANICKED,
            format!("step `{name}` panicked: {}", panic_text(&*panic)),
        ),
    };
    EffectOutcome::Err(error.into())
}

/// The word, the details and the next try of a run that can't go on.
fn parked(standing: Standing, stuck: &Stuck) -> (&'static str, serde_json::Value, Option<i64>) {
    let retry = BLOCK_RETRY_MS
        .checked_shl(u32::try_from(standing.tries).unwrap_or(0).min(16))
        .unwrap_or(BLOCK_RETRY_MAX_MS)
        .min(BLOCK_RETRY_MAX_MS);
    match stuck {
        Stuck::Corrupt { seq, reason } => {
            let detail = serde_json::json!({ "message": reason, "seq": seq });
            ("corrupt", detail, None)
        }
        Stuck::Quarantined => {
            let detail = serde_json::json!({ "message": "its owners died again and again while they held it" });
            ("quarantined", detail, None)
        }
        Stuck::Refused(reason) => {
            let detail = serde_json::json!({ "message": reason });
            let word = if standing.quarantined {
                "quarantined"
            } else {
                "refused"
            };
            (word, detail, Some(retry))
        }
        Stuck::Blocked(blocked) => {
            let word = match blocked {
                Blocked::Drift(_) => "drift",
                Blocked::Panicked(_) => "panicked",
                _ => "foreign",
            };
            let detail = serde_json::json!({ "message": blocked.to_string(), "blocked": blocked });
            (word, detail, Some(retry))
        }
    }
}

/// Gives leases back, for as long as the session lasts.
async fn release(core: Arc<Core>, session: Uuid, mut leases: Vec<(Lease, i64)>) {
    let mut backoff = Backoff::new(Duration::from_secs(1));
    let mut releasing = core.release_begins(leases.len());
    while !leases.is_empty() && core.is_current(session) {
        match lease::release(&core.database, session, &leases).await {
            Ok(outcomes) => {
                if outcomes.contains(&ReleaseOutcome::Due) {
                    core.ring_ready(0);
                }
                let busy = leases.into_iter().zip(outcomes);
                leases = busy
                    .filter(|(_, outcome)| *outcome == ReleaseOutcome::Busy)
                    .map(|(lease, _)| lease)
                    .collect();
                releasing.left(leases.len());
            }
            Err(error) => tracing::debug!(%error, "leases could not be given back yet"),
        }
        if !leases.is_empty() {
            tokio::time::sleep(backoff.next()).await;
        }
    }
}
