//! The waker that a run's code is polled with, and the mark that tells whose code a thread is running.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

thread_local! {
    /// The address of the root whose code runs on this thread; null where none does.
    static CURRENT: Cell<*const Root> = const { Cell::new(ptr::null()) };
}

/// The root waker of one run.
///
/// A wake that comes while the run is polled or delivered to means "poll again": `FuturesUnordered` and a yield do
/// that. A wake from anywhere else can only stem from something that the journal knows nothing of.
pub(crate) struct Root {
    woken: AtomicBool,
    foreign: AtomicBool,
}

impl Root {
    /// A root that is due for its first poll.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            woken: AtomicBool::new(true),
            foreign: AtomicBool::new(false),
        })
    }

    /// Marks this thread as the one that runs this root's code, until the guard is dropped.
    pub(crate) fn enter(&self) -> Entered {
        Entered {
            before: CURRENT.replace(self),
        }
    }

    /// Whether this thread is running this root's code.
    pub(crate) fn is_current(&self) -> bool {
        ptr::eq(CURRENT.get(), self)
    }

    /// Whether a poll is due; asking takes the mark.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }

    /// Whether anything from outside has ever woken this root.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Acquire)
    }
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_current() {
            self.woken.store(true, Ordering::Release);
        } else {
            self.foreign.store(true, Ordering::Release);
        }
    }
}

/// Restores the thread's former mark when dropped.
pub(crate) struct Entered {
    before: *const Root,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_wake_inside_asks_for_a_poll_and_a_wake_outside_is_foreign() {
        let root = Root::new();
        let waker = Waker::from(root.clone());
        assert!(root.take_woken() && !root.take_woken());
        {
            let _entered = root.enter();
            waker.wake_by_ref();
        }
        assert!(root.take_woken() && !root.is_foreign());
        waker.wake_by_ref();
        assert!(!root.take_woken() && root.is_foreign());
    }

    #[test]
    fn a_nested_run_does_not_take_the_mark_away() {
        let (outer, inner) = (Root::new(), Root::new());
        let _outer = outer.enter();
        {
            let _inner = inner.enter();
            assert!(inner.is_current() && !outer.is_current());
        }
        assert!(outer.is_current());
    }
}
