//! The ledger: what worker processes really did, beside what the journal says of it.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use continuum_schema::{Event, Payload, event::Outcome};
use uuid::Uuid;

use crate::ProcessSettings;

/// What this process was started with; in the test's own process nothing of this is used.
static SETTINGS: LazyLock<ProcessSettings> = LazyLock::new(|| {
    ProcessSettings::of_this_process().expect("only worker processes run this code")
});

static NOTES: AtomicU32 = AtomicU32::new(0);

/// Writes down that an effect was carried out, and gives it a value that no other execution has.
///
/// # Panics
/// If the process's log can't be written.
pub fn carry_out(run_id: Uuid, effect: &str, attempt: u32) -> String {
    let value = format!(
        "{}/{}",
        SETTINGS.name,
        NOTES.fetch_add(1, Ordering::Relaxed)
    );
    let mut log = OpenOptions::new()
        .append(true)
        .open(&SETTINGS.log)
        .expect("the log exists");
    // One write of one line: lines of several processes don't mix, and a kill leaves none in half.
    log.write_all(format!("{run_id} {effect} {attempt} {value}\n").as_bytes())
        .expect("the disk has room");
    value
}

/// What was carried out, as the worker processes noted it: run, effect, attempt and value.
///
/// # Panics
/// If the log can't be read.
#[must_use]
pub fn carried_out(log: &Path) -> Vec<(Uuid, String, u32, String)> {
    let text = std::fs::read_to_string(log).expect("the log exists");
    let note = |line: &str| {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("four words a line").to_owned();
        let (run_id, effect, attempt, value) = (next(), next(), next(), next());
        (
            run_id.parse().expect("an id"),
            effect,
            attempt.parse().expect("a number"),
            value,
        )
    };
    text.lines().map(note).collect()
}

/// What a run's code has seen: effects and their values.
pub type Seen = Vec<(String, String)>;

/// One run: its result, its journal and what was carried out tell the same.
///
/// # Panics
/// If they do not.
pub fn compare(
    run_id: Uuid,
    result: &[(String, String)],
    history: &[Event],
    notes: &HashSet<(String, u32, String)>,
) {
    let mut journaled: HashSet<String> = HashSet::new();
    let mut names = HashMap::new();
    for event in history {
        let (effect, attempt, outcome) = match event {
            Event::ActivityScheduled(scheduled) => {
                names.insert(scheduled.effect, effect_of(&scheduled.input));
                continue;
            }
            Event::ActivityCompleted {
                effect,
                attempt,
                outcome,
            } => (names[effect].clone(), *attempt, outcome),
            Event::StepCompleted { name, outcome, .. } => (name.clone(), 1, outcome),
            _ => continue,
        };
        match outcome {
            Outcome::Ok(value) => {
                let value: String = value.decode().expect("a text");
                assert!(
                    notes.contains(&(effect.clone(), attempt, value.clone())),
                    "run {run_id}: {effect} is journaled as {value}, which never happened"
                );
                journaled.insert(value);
            }
            Outcome::Err(failure) => assert_eq!(
                (effect.as_str(), failure.kind.as_str()),
                ("once", "WorkerLost")
            ),
        }
    }
    let once = notes
        .iter()
        .filter(|(effect, _, _)| effect == "once")
        .count();
    assert!(
        once <= 1,
        "run {run_id}: an activity of one attempt was carried out {once} times"
    );
    for (effect, value) in result {
        match effect.as_str() {
            "go" => assert_eq!(*value, run_id.to_string()),
            "never" => assert_eq!(value, "None"),
            _ => assert!(
                journaled.contains(value),
                "run {run_id}: the code saw {value} for {effect}, the journal has not"
            ),
        }
    }
}

/// The name that is in the input of each activity here.
fn effect_of(input: &Payload) -> String {
    input
        .decode::<(String, u64)>()
        .map_or_else(|_| input.decode().expect("a name"), |(name, _)| name)
}
