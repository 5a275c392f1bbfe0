//! The outside world: a payment provider and a parcel service in one file.
//!
//! It behaves as real ones do: a request that carries the key of an earlier one gets the earlier answer and nothing is
//! done again. The file holds one line of JSON for each thing that was really done, so what it counts is the truth, no
//! matter which process did it and what became of that process.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use continuum_worker::prelude::*;

use crate::Order;

const EFFECTS: &str = "effects.jsonl";
const REPEATS: &str = "repeats.jsonl";

/// What can be done for an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// The card was charged.
    Charge,
    /// The parcel was handed over.
    Ship,
    /// The money was given back.
    Refund,
}

/// One line of the ledger: something that was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What.
    pub deed: Deed,
    /// Its number, which the ledger gives.
    pub number: String,
    /// By which a repeated request is known.
    pub key: String,
    /// For which order.
    pub order: String,
    /// By which run.
    pub run_id: Uuid,
    /// By which attempt, from 1.
    pub attempt: u32,
    /// By which process.
    pub pid: u32,
}

/// The outside world in a folder. Cheap to clone; any number of processes may use the folder at once.
#[derive(Clone)]
pub struct Ledger(Arc<Shared>);

struct Shared {
    folder: PathBuf,
    book: Mutex<Option<Book>>,
}

/// The open file and what was read of it.
struct Book {
    file: File,
    /// Where the next line begins.
    end: u64,
    entries: Vec<Entry>,
    by_key: HashMap<String, usize>,
}

/// What a ledger adds up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Cards charged.
    pub charges: usize,
    /// Parcels handed over.
    pub shipments: usize,
    /// Charges given back.
    pub refunds: usize,
    /// Orders for which something was done twice.
    pub doubled: usize,
}

impl Deed {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Charge, Self::Ship, Self::Refund];
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Charge => "charge",
            Self::Ship => "ship",
            Self::Refund => "refund",
        })
    }
}

impl Entry {
    /// What the activity `ctx` asks for, still without a number.
    pub(crate) fn asked_by(ctx: &ActivityContext, deed: Deed, order: &Order) -> Self {
        Self {
            deed,
            number: String::new(),
            key: ctx.idempotency_key(),
            order: order.id.clone(),
            run_id: ctx.run_id(),
            attempt: ctx.attempt(),
            pid: std::process::id(),
        }
    }
}

impl Ledger {
    /// The ledger in this folder, which is created when something is first done.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Shared {
            folder: folder.into(),
            book: Mutex::new(None),
        }))
    }

    /// The ledger in the folder that `ORDERS_LEDGER` names; without it, `continuum-orders` among the temporary files.
    #[must_use]
    pub fn from_env() -> Self {
        let named = std::env::var_os("ORDERS_LEDGER").map(PathBuf::from);
        Self::new(named.unwrap_or_else(|| std::env::temp_dir().join("continuum-orders")))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Does what is asked for, on the disk before it returns, and gives the entry with its number. If the key has been
    /// used before, nothing is done and the earlier entry is given.
    ///
    /// # Errors
    /// If the folder can't be written. Nothing was done then, or a repeat will say that it was.
    pub fn post(&self, entry: Entry) -> io::Result<Entry> {
        self.with_book(|book| {
            book.file.lock()?;
            let posted = book.post(entry, &self.path(REPEATS));
            book.file.unlock()?;
            posted
        })
    }

    /// All that was done, in order.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        self.entries_after(0)
    }

    /// What was done after the first `seen` things.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn entries_after(&self, seen: usize) -> io::Result<Vec<Entry>> {
        self.with_book(|book| {
            book.catch_up()?;
            Ok(book.entries.get(seen..).unwrap_or_default().to_vec())
        })
    }

    /// How many requests were recognised as repeats.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn repeats(&self) -> io::Result<usize> {
        match fs::read_to_string(self.path(REPEATS)) {
            Ok(text) => Ok(text.lines().count()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whether this is the first time that `what` is asked, over all processes.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub(crate) fn is_first(&self, what: &str) -> io::Result<bool> {
        fs::create_dir_all(self.folder())?;
        match File::create_new(self.path(what)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn with_book<T>(&self, work: impl FnOnce(&mut Book) -> io::Result<T>) -> io::Result<T> {
        let mut slot = self.lock();
        let book = match slot.take() {
            Some(book) => book,
            None => Book::open(self.folder())?,
        };
        work(slot.insert(book))
    }

    /// A thread that panicked leaves at worst a book that has read too little.
    fn lock(&self) -> MutexGuard<'_, Option<Book>> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let file = append_to(&folder.join(EFFECTS))?;
        Ok(Self {
            file,
            end: 0,
            entries: Vec::new(),
            by_key: HashMap::new(),
        })
    }

    /// To be called with the file locked: between the look for the key and the new line nobody else may write.
    fn post(&mut self, mut entry: Entry, repeats: &Path) -> io::Result<Entry> {
        self.catch_up()?;
        if let Some(&earlier) = self.by_key.get(&entry.key) {
            let earlier = self.entries[earlier].clone();
            entry.number.clone_from(&earlier.number);
            append_to(repeats)?.write_all(&line(&entry)?)?;
            return Ok(earlier);
        }
        // Whoever died in the middle of a line has not done it.
        self.file.set_len(self.end)?;
        entry.number = format!("{}-{}", entry.deed, self.entries.len() + 1);
        self.file.write_all(&line(&entry)?)?;
        self.file.sync_data()?;
        self.catch_up()?;
        Ok(entry)
    }

    /// Reads the complete lines that were added.
    fn catch_up(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        let mut added = Vec::new();
        self.file.read_to_end(&mut added)?;
        for line in added.split_inclusive(|&byte| byte == b'\n') {
            if line.ends_with(b"\n") {
                let entry: Entry = serde_json::from_slice(line)?;
                self.by_key.insert(entry.key.clone(), self.entries.len());
                self.entries.push(entry);
                self.end += line.len() as u64;
            }
        }
        Ok(())
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(path)
}

fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

impl Totals {
    /// Adds up.
    #[must_use]
    pub fn of(entries: &[Entry]) -> Self {
        let mut done: BTreeMap<(&str, Deed), usize> = BTreeMap::new();
        for entry in entries {
            *done.entry((&entry.order, entry.deed)).or_default() += 1;
        }
        let count = |deed| entries.iter().filter(|entry| entry.deed == deed).count();
        let mut doubled: Vec<&str> = done
            .iter()
            .filter(|(_, times)| **times > 1)
            .map(|((order, _), _)| *order)
            .collect();
        doubled.dedup();
        Self {
            charges: count(Deed::Charge),
            shipments: count(Deed::Ship),
            refunds: count(Deed::Refund),
            doubled: doubled.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(deed: Deed, key: &str, order: &str) -> Entry {
        Entry {
            deed,
            number: String::new(),
            key: key.into(),
            order: order.into(),
            run_id: Uuid::nil(),
            attempt: 1,
            pid: 1,
        }
    }

    #[test]
    fn two_processes_that_ask_with_one_key_get_one_answer() {
        let folder = tempfile::tempdir().unwrap();
        // Each has the file open for itself, as another process would.
        let ledgers: Vec<Ledger> = (0..4).map(|_| Ledger::new(folder.path())).collect();
        let numbers: Vec<Vec<String>> = std::thread::scope(|scope| {
            let clerks = ledgers.iter().map(|ledger| {
                scope.spawn(|| {
                    let keys = (0..50).map(|key| entry(Deed::Charge, &key.to_string(), "A"));
                    keys.map(|e| ledger.post(e).unwrap().number).collect()
                })
            });
            let clerks: Vec<_> = clerks.collect();
            clerks.into_iter().map(|c| c.join().unwrap()).collect()
        });
        assert!(numbers.iter().all(|answers| *answers == numbers[0]));
        assert_eq!(Ledger::new(folder.path()).entries().unwrap().len(), 50);
        assert_eq!(ledgers[0].repeats().unwrap(), 150);
    }

    #[test]
    fn a_line_that_was_torn_by_a_crash_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        ledger.post(entry(Deed::Charge, "1", "A")).unwrap();
        let mut torn = append_to(&folder.path().join(EFFECTS)).unwrap();
        torn.write_all(br#"{"deed":"charge","#).unwrap();
        assert_eq!(ledger.entries().unwrap().len(), 1);
        ledger.post(entry(Deed::Charge, "2", "B")).unwrap();
        let read_anew = Ledger::new(folder.path()).entries().unwrap();
        assert_eq!(read_anew, ledger.entries().unwrap());
        assert_eq!(read_anew.len(), 2);
    }

    #[test]
    fn a_second_charge_under_another_key_is_counted_as_doubled() {
        let entries = [
            entry(Deed::Charge, "1", "A"),
            entry(Deed::Refund, "2", "A"),
            entry(Deed::Charge, "3", "B"),
            entry(Deed::Charge, "4", "B"),
            entry(Deed::Refund, "5", "B"),
            entry(Deed::Refund, "6", "B"),
            entry(Deed::Ship, "7", "C"),
        ];
        let totals = Totals::of(&entries);
        let expected = Totals {
            charges: 3,
            shipments: 1,
            refunds: 3,
            doubled: 1,
        };
        assert_eq!(totals, expected);
    }

    #[test]
    fn only_the_first_is_first() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path());
        assert!(ledger.is_first("crash").unwrap());
        assert!(!Ledger::new(folder.path()).is_first("crash").unwrap());
    }
}
