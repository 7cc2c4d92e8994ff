//! Threads beside a test: a panic of one ends the test at its next look, not when its time is over.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// With what a thread panicked, until somebody is told.
type Panic = Mutex<Option<Box<dyn Any + Send>>>;

thread_local! {
    /// The companions that this thread started.
    static COMPANIONS: RefCell<Vec<Weak<Panic>>> = const { RefCell::new(Vec::new()) };
}

/// A thread that does something for the one that started it.
#[derive(Debug)]
pub struct Companion<T> {
    thread: JoinHandle<Option<T>>,
    panic: Arc<Panic>,
}

impl<T: Send + 'static> Companion<T> {
    /// Starts it.
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let panic = Arc::new(Panic::default());
        COMPANIONS.with_borrow_mut(|all| all.push(Arc::downgrade(&panic)));
        let told = panic.clone();
        let thread = std::thread::spawn(move || match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => Some(done),
            Err(with) => {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(with);
                None
            }
        });
        Self { thread, panic }
    }

    /// Whether its work is over.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// What came of its work. Panics as it did.
    pub fn join(self) -> T {
        let done = self.thread.join().expect("its panic was caught");
        done.unwrap_or_else(|| resume_unwind(taken(&self.panic).unwrap_or_else(|| Box::new("a companion panicked"))))
    }
}

/// Panics as a companion of this thread did, if one has.
pub fn check() {
    let panicked = COMPANIONS.with_borrow_mut(|all| {
        all.retain(|panic| panic.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).find_map(|panic| taken(&panic))
    });
    if let Some(with) = panicked {
        resume_unwind(with);
    }
}

fn taken(panic: &Panic) -> Option<Box<dyn Any + Send>> {
    panic.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::eventually;

    #[test]
    fn whoever_waits_is_told_of_a_panic_at_once() {
        let begun = Instant::now();
        let test = std::thread::spawn(|| {
            let _companion = Companion::start(|| resume_unwind(Box::new("no answer")));
            eventually("something that never comes", Duration::from_mins(10), || None::<()>);
        });
        let with = test.join().expect_err("it cannot go on");
        assert_eq!(with.downcast_ref::<&str>(), Some(&"no answer"));
        assert!(begun.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn what_came_of_it_is_given_and_its_panic_passed_on() {
        assert_eq!(Companion::start(|| 7).join(), 7);
        let panicking = Companion::start(|| resume_unwind(Box::new(8)));
        let joined = catch_unwind(AssertUnwindSafe(|| panicking.join()));
        assert_eq!(joined.expect_err("it panicked").downcast_ref::<i32>(), Some(&8));
        check();
    }
}
