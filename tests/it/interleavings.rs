//! Two at once, step by step. One side is held in the middle of its work, the other comes; the test moves on only when
//! Postgres itself shows who waits for whom.

use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use continuum_schema::activity::{self, Attempt};
use continuum_schema::event::{ActivityOptions, ActivityScheduled, Outcome, RetryPolicy};
use continuum_schema::journal::{
    self, Append, AppendOutcome, CompletedActivity, End, NewActivity, NewEvent, RunEnd,
};
use continuum_schema::lease::{self, ClaimKey, ClaimedRun, ReleaseOutcome};
use continuum_schema::mailbox::{self, PostOutcome, Signal};
use continuum_schema::run::{self, Ending, Start, StartOutcome};
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, Error, Event, Lease, Payload};
use continuum_tests::{Held, Waits, World, check};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) const KEY: &str = "errand";
pub(crate) const PIN: &str = "errand@n1:0";

/// A world without workers: the tests call what workers call.
pub(crate) struct Stage {
    pub(crate) world: World,
    waits: Waits,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let world = World::new().await;
        let waits = Waits::new(&world).await;
        Self { world, waits }
    }

    fn database(&self) -> Database {
        self.world.database.clone()
    }

    pub(crate) async fn session(&self) -> Uuid {
        let new = NewSession {
            worker: "stage".into(),
            build: "test".into(),
            queues: vec!["errands".into()],
            claim_keys: vec![KEY.into(), PIN.into()],
        };
        session::open(&self.world.database, &new)
            .await
            .expect("a session")
    }

    pub(crate) async fn start(&self) -> Uuid {
        let start = Start {
            namespace: "default".into(),
            workflow: KEY.into(),
            key: None,
            input: Payload::unit(),
            trace_context: None,
        };
        match run::start(&self.world.database, &[start])
            .await
            .expect("it starts")[0]
        {
            StartOutcome::Started(run_id) => run_id,
            other => panic!("{other:?}"),
        }
    }

    async fn claim(&self, session: Uuid) -> Result<Vec<ClaimedRun>, Error> {
        let keys = [KEY, PIN].map(|key| ClaimKey {
            key: key.into(),
            pin: PIN.into(),
        });
        lease::claim(&self.world.database, session, &keys, 100, 0).await
    }

    /// A session that holds a new run, whose journal has its first event.
    pub(crate) async fn held_run(&self) -> (Uuid, Lease) {
        let (session, leases) = self.held_runs(1).await;
        (session, leases[0])
    }

    async fn held_runs(&self, count: usize) -> (Uuid, Vec<Lease>) {
        let session = self.session().await;
        for _ in 0..count {
            self.start().await;
        }
        let claimed = self.claim(session).await.expect("the session is open");
        let mut leases: Vec<Lease> = claimed.iter().map(|run| run.lease).collect();
        assert_eq!(leases.len(), count);
        leases.sort_by_key(|lease| lease.chain_id);
        for lease in &leases {
            assert_eq!(
                self.append(session, started(*lease)).await,
                AppendOutcome::Committed
            );
        }
        (session, leases)
    }

    pub(crate) async fn append(&self, session: Uuid, append: Append) -> AppendOutcome {
        journal::append(&self.world.database, session, &[&append])
            .await
            .expect("an answer")[0]
    }

    /// Sends appends in one batch, from a task of its own.
    fn appending(
        &self,
        session: Uuid,
        appends: Vec<Append>,
    ) -> JoinHandle<Result<Vec<AppendOutcome>, Error>> {
        let database = self.database();
        tokio::spawn(async move {
            let appends: Vec<&Append> = appends.iter().collect();
            journal::append(&database, session, &appends).await
        })
    }

    /// Posts signals in one batch, from a task of its own.
    fn posting(&self, runs: &[Uuid]) -> JoinHandle<Result<Vec<PostOutcome>, Error>> {
        let database = self.database();
        let signals: Vec<Signal> = runs.iter().map(|run_id| signal(*run_id)).collect();
        tokio::spawn(async move { mailbox::signal(&database, &signals).await })
    }

    async fn post(&self, run_id: Uuid) -> PostOutcome {
        mailbox::signal(&self.world.database, &[signal(run_id)])
            .await
            .expect("an answer")[0]
    }

    /// Parks a run for an hour, from a task of its own. Its owner read its mail at `wake`.
    fn parking(
        &self,
        session: Uuid,
        lease: Lease,
        wake: i64,
    ) -> JoinHandle<Result<ReleaseOutcome, Error>> {
        let database = self.database();
        tokio::spawn(async move {
            let detail = serde_json::Value::Null;
            let held = (&lease, wake);
            lease::block(&database, session, held, "stuck", &detail, Some(3_600_000)).await
        })
    }

    pub(crate) async fn finish(self) {
        check(&self.world.database).await;
    }
}

fn signal(run_id: Uuid) -> Signal {
    Signal {
        run_id,
        name: "word".into(),
        payload: Payload::unit(),
        delivery_id: None,
    }
}

fn append(lease: Lease, first: i32, event: &Event) -> Append {
    Append {
        lease,
        first,
        events: vec![NewEvent::new(event, 0)],
        end: None,
        mail: Vec::new(),
        timers_set: Vec::new(),
        timers_gone: Vec::new(),
        activities_dropped: Vec::new(),
        activities_completed: Vec::new(),
        activities: Vec::new(),
    }
}

fn started(lease: Lease) -> Append {
    let event = Event::Started {
        version: 1,
        hash: "n1:0".into(),
    };
    append(lease, 1, &event)
}

/// A step's result, different for each `value`.
pub(crate) fn step(lease: Lease, seq: i32, value: &str) -> Append {
    let event = Event::StepCompleted {
        effect: u32::try_from(seq).expect("positions are positive"),
        name: "step".into(),
        outcome: Outcome::Ok(Payload::encode(&value).expect("a text")),
    };
    append(lease, seq, &event)
}

fn end(lease: Lease, seq: i32) -> Append {
    let event = Event::Completed {
        result: Payload::unit(),
        unread: Vec::new(),
    };
    Append {
        end: Some(End {
            state: RunEnd::Completed(Payload::unit()),
            hash: "n1:0".into(),
        }),
        ..append(lease, seq, &event)
    }
}

async fn join<T>(task: JoinHandle<T>) -> T {
    task.into_future().await.expect("the task does not panic")
}

#[tokio::test]
async fn a_take_over_can_not_pass_an_append_that_is_under_way() {
    let mut stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    let mut held = Held::begin(&stage.world).await;
    held.take_position(lease.run_id, 2).await;
    let appending = stage.appending(session, vec![step(lease, 2, "old")]);
    stage.waits.behind(held.pid(), 1).await;

    // The append has locked its lease and read; a sweep sets the row aside.
    assert!(
        session::close(&stage.world.database, session, None, "test")
            .await
            .unwrap()
    );
    assert_eq!(
        lease::sweep(&stage.world.database, 100, 20).await.unwrap(),
        0
    );
    held.roll_back().await;
    assert_eq!(join(appending).await.unwrap(), [AppendOutcome::Committed]);

    assert_eq!(
        lease::sweep(&stage.world.database, 100, 20).await.unwrap(),
        1
    );
    let claimed = stage.claim(stage.session().await).await.unwrap();
    assert_eq!(
        claimed[0].history.len(),
        2,
        "who takes over reads what the append wrote"
    );
    stage.finish().await;
}

#[tokio::test]
async fn an_append_that_meets_a_take_over_is_refused_and_leaves_the_mail() {
    let mut stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    stage.post(lease.run_id).await;
    let mail = mailbox::read(&stage.world.database, session, &[lease.chain_id])
        .await
        .unwrap();
    let mut late = step(lease, 2, "late");
    late.mail = mail[0].mail.iter().map(|mail| mail.mail_id).collect();
    assert_eq!(late.mail.len(), 1);

    assert!(
        session::close(&stage.world.database, session, None, "test")
            .await
            .unwrap()
    );
    let mut taking_over = Held::begin(&stage.world).await;
    assert_eq!(taking_over.sweep().await, 1);
    let appending = stage.appending(session, vec![late.clone()]);
    stage.waits.behind(taking_over.pid(), 1).await;
    taking_over.commit().await.unwrap();
    assert_eq!(join(appending).await.unwrap(), [AppendOutcome::Refused]);

    // All positions are free, and the token is stale all the same.
    let second = stage.session().await;
    let claimed = stage.claim(second).await.unwrap();
    assert_eq!(claimed[0].mail.len(), 1, "the refused append took no mail");
    assert_eq!(claimed[0].history.len(), 1);
    assert_eq!(
        stage.append(session, late.clone()).await,
        AppendOutcome::Refused
    );

    // Nor does it come through when the new owner has ended the run and its lease row is gone.
    let mut last = end(claimed[0].lease, 2);
    last.mail.clone_from(&late.mail);
    assert_eq!(stage.append(second, last).await, AppendOutcome::Committed);
    for seq in [2, 3] {
        assert_eq!(
            stage.append(session, step(lease, seq, "later")).await,
            AppendOutcome::Refused
        );
    }
    assert_eq!(stage.world.history(lease.run_id).await.len(), 2);
    stage.finish().await;
}

#[tokio::test]
async fn the_token_of_an_earlier_claim_by_the_same_session_is_stale() {
    let stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    let released = lease::release(&stage.world.database, session, &[(lease, -1)]).await;
    assert_eq!(released.unwrap(), [ReleaseOutcome::Due]);
    let claimed = stage.claim(session).await.unwrap();
    let outcome = stage.append(session, step(lease, 2, "earlier")).await;
    assert_eq!(outcome, AppendOutcome::Refused);
    let outcome = stage
        .append(session, step(claimed[0].lease, 2, "now"))
        .await;
    assert_eq!(outcome, AppendOutcome::Committed);
    session::close(&stage.world.database, session, None, "test")
        .await
        .unwrap();
    stage.finish().await;
}

#[tokio::test]
async fn an_end_never_waits_for_a_post_and_reports_it_unread() {
    let stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    let mut posting = Held::begin(&stage.world).await;
    assert_eq!(posting.post(lease.run_id, "word").await, (0, Some(session)));
    assert_eq!(
        stage.append(session, end(lease, 2)).await,
        AppendOutcome::Busy
    );
    posting.commit().await.unwrap();
    assert_eq!(
        stage.append(session, end(lease, 2)).await,
        AppendOutcome::Committed
    );
    let run = run::get(&stage.world.database, lease.run_id).await.unwrap();
    assert_eq!(run.unread, 1);
    assert_eq!(
        stage.append(session, end(lease, 2)).await,
        AppendOutcome::Committed,
        "the same append again"
    );
    stage.finish().await;
}

#[tokio::test]
async fn a_post_that_meets_an_end_is_told_so_and_nothing_is_stored() {
    let mut stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    let mut held = Held::begin(&stage.world).await;
    held.take_position(lease.run_id, 2).await;
    let ending = stage.appending(session, vec![end(lease, 2)]);
    let enders = stage.waits.behind(held.pid(), 1).await;
    let posting = stage.posting(&[lease.run_id]);
    stage.waits.behind(enders[0], 1).await;
    held.roll_back().await;
    assert_eq!(join(ending).await.unwrap(), [AppendOutcome::Committed]);
    assert_eq!(join(posting).await.unwrap(), [PostOutcome::Ended]);
    let run = run::get(&stage.world.database, lease.run_id).await.unwrap();
    assert_eq!((run.unread, run.mail), (0, 0));
    stage.finish().await;
}

/// A session that holds nothing, and a cold run that is not due.
async fn cold_run(stage: &Stage) -> (Uuid, Lease) {
    let (session, lease) = stage.held_run().await;
    let released = lease::release(&stage.world.database, session, &[(lease, 0)])
        .await
        .unwrap();
    assert_eq!(released, [ReleaseOutcome::Released]);
    assert!(
        stage.claim(session).await.unwrap().is_empty(),
        "a cold run is not due"
    );
    (session, lease)
}

#[tokio::test]
async fn a_claim_beside_a_post_loses_no_wake() {
    let mut stage = Stage::new().await;
    // The post is first: the claim does not wait for it, and finds the run afterwards, with its mail.
    let (session, cold) = cold_run(&stage).await;
    let mut posting = Held::begin(&stage.world).await;
    assert_eq!(posting.post(cold.run_id, "word").await, (0, None));
    assert!(stage.claim(session).await.unwrap().is_empty());
    posting.commit().await.unwrap();
    let claimed = stage.claim(session).await.unwrap();
    assert_eq!((claimed[0].wake, claimed[0].mail.len()), (1, 1));

    // The claim is first: the post waits for it and learns whom to wake.
    let due = stage.start().await;
    let mut claiming = Held::begin(&stage.world).await;
    assert_eq!(claiming.claim(session, KEY, PIN).await.len(), 1);
    let posting = stage.posting(&[due]);
    stage.waits.behind(claiming.pid(), 1).await;
    claiming.commit().await.unwrap();
    let [PostOutcome::Posted(wake)] = join(posting).await.unwrap()[..] else {
        panic!("the run is active")
    };
    assert_eq!((wake.run_id, wake.owner), (due, Some(session)));
    let mailbox = mailbox::read(&stage.world.database, session, &[due])
        .await
        .unwrap();
    assert_eq!((mailbox[0].wake, mailbox[0].mail.len()), (1, 1));
    session::close(&stage.world.database, session, None, "test")
        .await
        .unwrap();
    stage.finish().await;
}

#[tokio::test]
async fn a_release_beside_a_post_leaves_the_run_due() {
    let mut stage = Stage::new().await;
    let (session, leases) = stage.held_runs(3).await;
    // A post that its owner has not read.
    stage.post(leases[0].run_id).await;
    let released = lease::release(&stage.world.database, session, &[(leases[0], 0)])
        .await
        .unwrap();
    assert_eq!(released, [ReleaseOutcome::Due]);

    // A post that is under way: the release is set aside and the lease stays.
    let mut posting = Held::begin(&stage.world).await;
    posting.post(leases[1].run_id, "word").await;
    let busy = lease::release(&stage.world.database, session, &[(leases[1], 0)])
        .await
        .unwrap();
    assert_eq!(busy, [ReleaseOutcome::Busy]);
    posting.commit().await.unwrap();
    let due = lease::release(&stage.world.database, session, &[(leases[1], 0)])
        .await
        .unwrap();
    assert_eq!(due, [ReleaseOutcome::Due]);

    // A release that is under way: the post waits for it and makes the cold run due.
    let mut releasing = Held::begin(&stage.world).await;
    assert_eq!(
        releasing
            .release(session, leases[2].chain_id, leases[2].token, 0)
            .await,
        0
    );
    let posting = stage.posting(&[leases[2].run_id]);
    stage.waits.behind(releasing.pid(), 1).await;
    releasing.commit().await.unwrap();
    let [PostOutcome::Posted(wake)] = join(posting).await.unwrap()[..] else {
        panic!("the run is active")
    };
    assert_eq!(wake.owner, None);
    assert_eq!(
        stage.claim(session).await.unwrap().len(),
        3,
        "all three are due"
    );
    stage.finish().await;
}

#[tokio::test]
async fn the_close_of_a_session_waits_for_a_claim_and_a_claim_for_the_close() {
    let mut stage = Stage::new().await;
    let run_id = stage.start().await;
    let (first, second) = (stage.session().await, stage.session().await);

    // The claim is first: the close waits, and the next sweep finds what slipped in.
    let mut claiming = Held::begin(&stage.world).await;
    let tokens = claiming.claim(first, KEY, PIN).await;
    assert_eq!(tokens.len(), 1);
    let database = stage.database();
    let closing =
        tokio::spawn(async move { session::close(&database, first, Some(0), "test").await });
    stage.waits.behind(claiming.pid(), 1).await;
    claiming.commit().await.unwrap();
    assert!(join(closing).await.unwrap());
    let zombie = Lease {
        chain_id: run_id,
        run_id,
        token: tokens[0],
    };
    assert_eq!(
        lease::sweep(&stage.world.database, 100, 20).await.unwrap(),
        1
    );
    assert_eq!(
        stage.append(first, started(zombie)).await,
        AppendOutcome::Refused
    );

    // The close is first: the claim waits, learns of it, and has taken nothing.
    let mut closing = Held::begin(&stage.world).await;
    closing.close(second).await;
    let third = stage.session().await;
    let (database, keys) = (
        stage.database(),
        [ClaimKey {
            key: KEY.into(),
            pin: PIN.into(),
        }],
    );
    let claiming = tokio::spawn(async move { lease::claim(&database, second, &keys, 10, 0).await });
    stage.waits.behind(closing.pid(), 1).await;
    closing.commit().await.unwrap();
    assert!(matches!(join(claiming).await, Err(Error::SessionClosed)));
    assert_eq!(stage.claim(third).await.unwrap().len(), 1);
    stage.finish().await;
}

#[tokio::test]
async fn a_heartbeat_voids_a_close_that_saw_an_older_one() {
    let stage = Stage::new().await;
    let session = stage.session().await;
    session::beat(&stage.world.database, session).await.unwrap();
    assert!(
        !session::close(&stage.world.database, session, Some(0), "test")
            .await
            .unwrap()
    );
    assert!(
        session::close(&stage.world.database, session, Some(1), "test")
            .await
            .unwrap()
    );
    assert!(matches!(
        session::beat(&stage.world.database, session).await,
        Err(Error::SessionClosed)
    ));
}

/// Sends the same append again and again while the answer is "try again", as a journal writer does.
async fn insist(database: Database, session: Uuid, append: Append) -> Result<AppendOutcome, Error> {
    loop {
        match journal::append(&database, session, &[&append]).await {
            Ok(outcomes) if outcomes[0] == AppendOutcome::Busy => {}
            Ok(outcomes) => return Ok(outcomes[0]),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn schedule(lease: Lease, seq: i32) -> Append {
    let scheduled = ActivityScheduled {
        effect: 1,
        name: "deliver".into(),
        input: Payload::unit(),
        options: ActivityOptions {
            queue: "errands".into(),
            retry: RetryPolicy::default(),
            timeout_ms: 1_000,
            idempotency_key: None,
        },
    };
    let mut scheduling = append(lease, seq, &Event::ActivityScheduled(scheduled));
    scheduling.activities.push(NewActivity {
        effect: 1,
        seq,
        queue: "errands".into(),
        name: "deliver".into(),
        max_attempts: 1,
        eager: true,
    });
    scheduling
}

fn complete(lease: Lease, seq: i32) -> Append {
    let event = Event::ActivityCompleted {
        effect: 1,
        attempt: 1,
        outcome: Outcome::Ok(Payload::unit()),
    };
    let mut completing = append(lease, seq, &event);
    completing.activities_completed.push(CompletedActivity {
        effect: 1,
        attempt: 1,
        result: None,
    });
    completing
}

/// The old backend may still be at work when the same append is sent again. Each kind of row that an append touches is
/// tried: events alone, mail, an activity's birth, its completion, the end.
#[tokio::test]
async fn the_same_append_twice_at_once_is_committed_once_and_both_are_told_so() {
    let mut stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    stage.post(lease.run_id).await;
    let mail = mailbox::read(&stage.world.database, session, &[lease.chain_id])
        .await
        .unwrap();
    let mut with_mail = step(lease, 3, "mail");
    with_mail.mail = mail[0].mail.iter().map(|mail| mail.mail_id).collect();
    let appends = [
        step(lease, 2, "plain"),
        with_mail,
        schedule(lease, 4),
        complete(lease, 5),
        end(lease, 6),
    ];
    for append in appends {
        let mut held = Held::begin(&stage.world).await;
        held.take_position(lease.run_id, append.first).await;
        let first = tokio::spawn(insist(stage.database(), session, append.clone()));
        stage.waits.behind(held.pid(), 1).await;
        let second = tokio::spawn(insist(stage.database(), session, append.clone()));
        if append.end.is_none() {
            // An end sets itself aside while the row is locked; everything else waits.
            stage.waits.behind(held.pid(), 2).await;
        }
        held.roll_back().await;
        let what = append.first;
        assert_eq!(
            join(first).await.unwrap(),
            AppendOutcome::Committed,
            "the first of {what}"
        );
        assert_eq!(
            join(second).await.unwrap(),
            AppendOutcome::Committed,
            "the second of {what}"
        );
        assert_eq!(
            insist(stage.database(), session, append).await.unwrap(),
            AppendOutcome::Committed,
            "once more {what}"
        );
    }
    assert_eq!(stage.world.history(lease.run_id).await.len(), 6);
    stage.finish().await;
}

#[tokio::test]
async fn batches_in_opposite_orders_do_not_deadlock() {
    let mut stage = Stage::new().await;
    let (session, leases) = stage.held_runs(2).await;
    let runs: Vec<Uuid> = leases.iter().map(|lease| lease.run_id).collect();
    let back: Vec<Uuid> = runs.iter().rev().copied().collect();
    for _ in 0..20 {
        let mut held = Held::begin(&stage.world).await;
        held.lock_leases().await;
        let posts = [
            stage.posting(&runs),
            stage.posting(&back),
            stage.posting(&runs),
            stage.posting(&back),
        ];
        stage.waits.behind(held.pid(), 4).await;
        held.commit().await.unwrap();
        for posting in posts {
            assert!(
                join(posting)
                    .await
                    .unwrap()
                    .iter()
                    .all(|o| matches!(o, PostOutcome::Posted(_)))
            );
        }
    }
    // Appends share their locks with posts: nobody waits for anybody.
    let mut held = Held::begin(&stage.world).await;
    held.lock_leases().await;
    let there = vec![step(leases[0], 2, "a"), step(leases[1], 2, "a")];
    let outcomes = join(stage.appending(session, there)).await.unwrap();
    assert_eq!(outcomes, [AppendOutcome::Committed; 2]);
    held.roll_back().await;
    stage.finish().await;
}

#[tokio::test]
async fn callers_that_signal_the_same_runs_in_opposite_orders_do_not_deadlock() {
    let mut stage = Stage::new().await;
    let (_, leases) = stage.held_runs(2).await;
    let schema = stage.world.database.schema().to_owned();
    for _ in 0..10 {
        let mut held = Held::begin(&stage.world).await;
        held.lock_leases().await;
        let mut commits = Vec::new();
        for runs in [[0, 1], [1, 0]] {
            let mut caller = Held::begin(&stage.world).await;
            for run in runs {
                mailbox::signal_in(&mut caller.connection, &schema, &signal(leases[run].run_id))
                    .await
                    .unwrap();
            }
            commits.push(tokio::spawn(caller.commit()));
        }
        stage.waits.behind(held.pid(), 2).await;
        held.commit().await.unwrap();
        for commit in commits {
            join(commit).await.unwrap();
        }
    }
    stage.finish().await;
}

#[tokio::test]
async fn a_callers_open_transaction_holds_up_neither_the_run_nor_its_neighbours() {
    let stage = Stage::new().await;
    let (session, leases) = stage.held_runs(3).await;
    let schema = stage.world.database.schema().to_owned();
    let mut caller = Held::begin(&stage.world).await;
    let mut late = Held::begin(&stage.world).await;
    mailbox::signal_in(&mut caller.connection, &schema, &signal(leases[0].run_id))
        .await
        .unwrap();
    mailbox::signal_in(&mut late.connection, &schema, &signal(leases[1].run_id))
        .await
        .unwrap();

    // A group commit with both runs, one of which ends; a release; another sender: nobody waits or is set aside.
    let since = Instant::now();
    let batch = vec![
        step(leases[0], 2, "a"),
        end(leases[1], 2),
        step(leases[2], 2, "a"),
    ];
    assert_eq!(
        join(stage.appending(session, batch)).await.unwrap(),
        [AppendOutcome::Committed; 3]
    );
    assert!(matches!(
        stage.post(leases[0].run_id).await,
        PostOutcome::Posted(_)
    ));
    let released = lease::release(&stage.world.database, session, &[(leases[0], 1)])
        .await
        .unwrap();
    assert_eq!(released, [ReleaseOutcome::Released]);
    assert!(
        since.elapsed() < Duration::from_secs(4),
        "somebody waited for the lock time-out"
    );

    caller.commit().await.unwrap();
    let claimed = stage.claim(session).await.unwrap();
    assert_eq!(
        claimed[0].mail.len(),
        2,
        "the caller's signal came at its commit"
    );
    let error = late.commit().await.unwrap_err();
    let code = error.as_database_error().and_then(|e| e.code()).unwrap();
    assert_eq!(code, "CTM02", "the run had ended by then");
    assert_eq!(
        run::endings(&stage.world.database, &[leases[1].run_id])
            .await
            .unwrap(),
        [Some(Ending::Completed(Payload::unit()))]
    );
    stage.finish().await;
}

#[tokio::test]
async fn one_guilty_run_fails_its_batch_and_a_stale_attempt_ends_nothing() {
    let stage = Stage::new().await;
    let (session, leases) = stage.held_runs(2).await;
    assert_eq!(
        stage.append(session, schedule(leases[0], 2)).await,
        AppendOutcome::Committed
    );
    let attempt = Attempt {
        run_id: leases[0].run_id,
        effect: 1,
        attempt: 1,
    };
    // Somebody records the attempt as lost; the worker that ran it comes too late.
    assert!(
        activity::retry(
            &stage.world.database,
            session,
            attempt,
            &activity::AttemptEnd::Unknown,
            0
        )
        .await
        .unwrap()
    );
    let batch = vec![complete(leases[0], 3), step(leases[1], 2, "a")];
    assert!(matches!(
        join(stage.appending(session, batch)).await,
        Err(Error::Stale(_))
    ));
    assert_eq!(stage.world.history(leases[0].run_id).await.len(), 2);
    assert_eq!(
        stage.world.history(leases[1].run_id).await.len(),
        1,
        "a batch is all or nothing"
    );
    let completion = activity::Completion {
        attempt,
        event: Event::ActivityCompleted {
            effect: 1,
            attempt: 1,
            outcome: Outcome::Ok(Payload::unit()),
        },
        result: None,
    };
    let discarded = activity::complete(&stage.world.database, session, &[completion])
        .await
        .unwrap();
    assert_eq!(discarded, [None]);
    stage.finish().await;
}

#[tokio::test]
async fn an_activity_is_not_born_leased_to_a_closed_session() {
    let stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    assert!(
        session::close(&stage.world.database, session, None, "test")
            .await
            .unwrap()
    );
    let born = journal::append(&stage.world.database, session, &[&schedule(lease, 2)]).await;
    assert!(matches!(born, Err(Error::SessionClosed)));
    let claimed = activity::claim(
        &stage.world.database,
        session,
        &["errands".into()],
        &["deliver".into()],
        1,
    )
    .await;
    assert!(matches!(claimed, Err(Error::SessionClosed)));
    assert_eq!(
        lease::sweep(&stage.world.database, 100, 20).await.unwrap(),
        1
    );
    stage.finish().await;
}

/// Parked for an hour, and the request to stop that its owner did not see is seen now.
#[tokio::test]
async fn a_cancel_that_races_with_parking_makes_the_run_due_and_one_that_was_seen_does_not() {
    let mut stage = Stage::new().await;
    let (session, lease) = stage.held_run().await;
    let mut held = Held::begin(&stage.world).await;
    held.cancel(lease.run_id).await;
    let parking = stage.parking(session, lease, 0);
    stage.waits.behind(held.pid(), 1).await;
    held.commit().await.unwrap();
    assert_eq!(join(parking).await.unwrap(), ReleaseOutcome::Due);

    let session = stage.session().await;
    let claimed = stage.claim(session).await.unwrap();
    let [run] = claimed.as_slice() else {
        panic!("the run is not due");
    };
    assert_eq!(run.mail.len(), 1, "the request");
    let parking = stage.parking(session, run.lease, run.wake);
    assert_eq!(join(parking).await.unwrap(), ReleaseOutcome::Released);
    assert!(stage.claim(session).await.unwrap().is_empty());
    stage.finish().await;
}
