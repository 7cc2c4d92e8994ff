//! The store: one published view, swapped whole, and a revision that waiters watch.
//!
//! Readers never wait: `load` is a few loads and stores. Publishing swaps first and then bumps the
//! revision, so a woken task finds the new view; waiters take their [`Watcher`] before they load.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use tokio::sync::watch;

/// How often, and after which pause, it is looked whether a replaced view is still being read: for 100 ms, far longer than
/// an answer takes.
const FREE_TRIES: usize = 100;
const FREE_PAUSE: Duration = Duration::from_millis(1);

/// How many views were published; 0 before the first one. Only for this process: it starts again with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision before anything was published.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is published at the moment.
pub struct Store<T> {
    current: ArcSwap<T>,
    revision: watch::Sender<Revision>,
    /// Whether the engine that runs the local clients is the origin of what is published.
    live_clients: AtomicBool,
    /// How far those got that build their own view from this one.
    followers: ArcSwap<Vec<watch::Receiver<Revision>>>,
}

impl<T> Store<T> {
    /// A store in which `initial` stands until the first publication.
    pub fn new(initial: T) -> Self {
        Self {
            current: ArcSwap::from_pointee(initial),
            revision: watch::channel(Revision::NONE).0,
            live_clients: AtomicBool::new(false),
            followers: ArcSwap::default(),
        }
    }

    /// The current view.
    ///
    /// The guard pins it: finish with it before awaiting anything.
    pub fn load(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// The current view, as a reference of its own.
    pub fn load_full(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// The revision of the current view, or of one about to be current.
    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    /// Makes `view` the current one and wakes the waiters. One task publishes.
    ///
    /// Returns the view that was current before, so that the publisher decides where it is freed.
    pub fn publish(&self, view: Arc<T>) -> Arc<T> {
        let old = self.current.swap(view);
        self.revision.send_modify(|revision| revision.0 += 1);
        old
    }

    /// Whether the engine that runs the local clients is the origin: a client may ask a moment before it is published.
    pub fn has_live_clients(&self) -> bool {
        self.live_clients.load(Ordering::Relaxed)
    }

    /// From now on the engine that runs the local clients is the origin, or is not.
    pub fn set_live_clients(&self, live: bool) {
        self.live_clients.store(live, Ordering::Relaxed);
    }

    /// Starts watching for publications.
    ///
    /// Take the watcher before loading the view: a publication in between is then seen twice, never missed.
    pub fn watch(&self) -> Watcher {
        Watcher(self.revision.subscribe())
    }

    /// Registers a view that is built from this one; see [`Store::settled`].
    ///
    /// Register before the first publication that a task waits for.
    pub fn follower(&self) -> Follower {
        let (progress, receiver) = watch::channel(Revision::NONE);
        self.followers.rcu(|followers| {
            let mut followers = Vec::clone(followers);
            followers.push(receiver.clone());
            followers
        });
        Follower(progress)
    }

    /// Waits until all followers have published what they made of the current revision, or have ended.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn settled(&self) {
        let revision = self.revision();
        let followers = self.followers.load_full();
        for follower in followers.iter() {
            // An error means that the follower ended: nothing to wait for.
            let _ = follower.clone().wait_for(|reached| *reached >= revision).await;
        }
    }
}

impl<T> fmt::Debug for Store<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("revision", &self.revision()).finish_non_exhaustive()
    }
}

/// Sees that something was published.
#[derive(Clone, Debug)]
pub struct Watcher(watch::Receiver<Revision>);

impl Watcher {
    /// Waits for a publication since the last call (or since the watcher was taken).
    ///
    /// Never completes once the store is gone.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; no publication is lost.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until anything has been published.
    ///
    /// # Cancel safety
    ///
    /// As for [`Watcher::changed`].
    pub async fn first(&mut self) {
        while self.seen() == Revision::NONE {
            self.changed().await;
        }
    }

    /// The current revision, which counts as seen from now on.
    pub fn seen(&mut self) -> Revision {
        *self.0.borrow_and_update()
    }
}

/// Reports to a store up to which revision a view that is built from it is current.
#[derive(Debug)]
pub struct Follower(watch::Sender<Revision>);

impl Follower {
    /// Everything up to `revision` is visible in the follower's own view.
    pub fn reached(&self, revision: Revision) {
        self.0.send_replace(revision);
    }
}

/// Keeps `views` up to date with `inputs`: builds a new view, off the serving threads, after each publication.
///
/// `build` gets the new input, the input and the view before, so that it can cost what changed; `None`
/// means that nothing visible changed. Never ends; drop it to stop.
///
/// # Cancel safety
///
/// May be dropped at any time: a view is published whole or not at all.
pub fn derive<I, V>(
    inputs: Arc<Store<I>>,
    views: Arc<Store<V>>,
    build: impl Fn(&Arc<I>, &Arc<I>, &Arc<V>) -> Option<V> + Send + Sync + 'static,
) -> Derivation
where
    I: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    // Registered by the call itself: a task that waits for the store to settle from now on waits for this view too.
    let follower = inputs.follower();
    Derivation(Box::pin(keep_derived(inputs, views, build, follower)))
}

/// Views being kept up to date, see [`derive`]; does so while it is awaited.
pub struct Derivation(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Derivation {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Derivation").finish_non_exhaustive()
    }
}

/// Frees a view on this thread, which serves no request: the last reader would otherwise do that, and be late.
fn free<V>(view: Arc<V>) {
    for _ in 0..FREE_TRIES {
        if Arc::strong_count(&view) == 1 {
            break;
        }
        std::thread::sleep(FREE_PAUSE);
    }
    drop(view);
}

async fn keep_derived<I, V>(
    inputs: Arc<Store<I>>,
    views: Arc<Store<V>>,
    build: impl Fn(&Arc<I>, &Arc<I>, &Arc<V>) -> Option<V> + Send + Sync + 'static,
    follower: Follower,
) where
    I: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let build = Arc::new(build);
    let mut watcher = inputs.watch();
    let mut before = inputs.load_full();
    // What is there already counts as a publication.
    let mut revision = watcher.seen();
    loop {
        if revision > Revision::NONE {
            let input = inputs.load_full();
            let (build, views) = (build.clone(), views.clone());
            let (old, next) = (before.clone(), input.clone());
            let outcome = tokio::task::spawn_blocking(move || {
                let view = views.load_full();
                Some(views.publish(Arc::new(build(&next, &old, &view)?)))
            });
            let replaced = if let Ok(replaced) = outcome.await {
                before = input;
                replaced
            } else {
                tracing::error!("building a view failed; the one before stays until the next publication");
                None
            };
            follower.reached(revision);
            if let Some(view) = replaced {
                // Detached: no task waits for it, and it ends by itself.
                drop(tokio::task::spawn_blocking(move || free(view)));
            }
        }
        watcher.changed().await;
        revision = watcher.seen();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_is_woken_finds_the_new_view() {
        let store = Arc::new(Store::new(0));
        let mut watcher = store.watch();
        let waiter = tokio::spawn({
            let store = store.clone();
            async move {
                watcher.changed().await;
                *store.load_full()
            }
        });
        tokio::task::yield_now().await;
        assert_eq!(*store.publish(Arc::new(1)), 0);
        assert_eq!(waiter.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_publication_between_watching_and_loading_is_not_missed() {
        let store = Store::new(0);
        let mut watcher = store.watch();
        store.publish(Arc::new(1));
        watcher.changed().await;
        assert_eq!(**store.load(), 1);
    }

    #[tokio::test]
    async fn settled_waits_for_the_views_built_from_it() {
        let inputs = Arc::new(Store::new(0));
        let views = Arc::new(Store::new(String::new()));
        let task =
            tokio::spawn(derive(inputs.clone(), views.clone(), |new, old, view| Some(format!("{view}{old}>{new} "))));
        tokio::task::yield_now().await;
        inputs.publish(Arc::new(7));
        inputs.settled().await;
        assert_eq!(**views.load(), "0>7 ");
        inputs.publish(Arc::new(8));
        inputs.settled().await;
        assert_eq!(**views.load(), "0>7 7>8 ");
        task.abort();
    }
}
