//! Threads that do a store's blocking work on keys and staged files, one job after the other.
//!
//! A thread for each small file would cost more than reading it: one is woken for each, finds another one at work, and sleeps again.
//! So only as many threads as there are processors begin at once, and each goes on with what waits. Whoever waits longer than
//! quick work takes, since a disk is slow or hangs, has one thread more begin. Pieces of files that are open, up to 1 MiB each, do not
//! come here: a hand-over does not show beside them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

/// How long a job waits before one worker more begins: many times what it takes to read a small file from memory, and less than
/// one access to a disk that turns.
const PATIENCE: Duration = Duration::from_millis(2);
/// Workers of one store at most. A process has 512 threads for the blocking work of all its stores.
const MOST: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// The workers of a store. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Workers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// Workers that have begun and not ended.
    busy: usize,
}

impl Workers {
    /// Has work done by one of them. Nothing is returned if it panicked, or the runtime is ending.
    ///
    /// # Cancellation
    /// Dropping the future does not stop the work.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, mut result) = oneshot::channel();
        let job = move || {
            // Nobody may wait for it any more.
            let _ = done.send(work());
        };
        self.state().waiting.push_back(Box::new(job));
        self.begin_one(quick());
        let mut patience = PATIENCE;
        loop {
            tokio::select! {
                biased;
                result = &mut result => return result.ok(),
                () = tokio::time::sleep(patience) => {}
            }
            // Again and again, since the one that began may have gone to the work of somebody who has left.
            self.begin_one(MOST);
            patience *= 2;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has one more begin, if there is work for it and there are not so many already.
    fn begin_one(&self, most: usize) {
        let mut state = self.state();
        if state.waiting.is_empty() || state.busy >= most {
            return;
        }
        state.busy += 1;
        drop(state);
        let workers = self.clone();
        tokio::task::spawn_blocking(move || {
            // Made here, since a runtime that is ending drops what it does not begin.
            let worker = Worker(workers);
            while let Some(job) = worker.next() {
                job();
            }
        });
    }
}

/// One of them. Another one goes on if its job panics.
struct Worker(Workers);

impl Worker {
    fn next(&self) -> Option<Job> {
        self.0.state().waiting.pop_front()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.state().busy -= 1;
        // Work may have come since it looked.
        self.0.begin_one(quick());
    }
}

/// Workers that begin at once.
fn quick() -> usize {
    static QUICK: OnceLock<usize> = OnceLock::new();
    *QUICK.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from).min(MOST))
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Workers").field("waiting", &state.waiting.len()).field("busy", &state.busy).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Barrier, mpsc};

    use super::*;

    /// Does jobs at once, and returns what came of them, in their order.
    async fn all<T: Send + 'static>(
        workers: &Workers,
        jobs: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
    ) -> Vec<Option<T>> {
        let spawn = |job| {
            let workers = workers.clone();
            tokio::spawn(async move { workers.run(job).await })
        };
        let running: Vec<_> = jobs.into_iter().map(spawn).collect();
        let mut done = Vec::new();
        for one in running {
            done.push(one.await.unwrap());
        }
        done
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_work_is_done_side_by_side_up_to_a_bound() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // None ends before so many are at it.
        let together = Arc::new(Barrier::new(MOST));
        let jobs = (0..3 * MOST).map(|number| {
            let (now, most, together) = (now.clone(), most.clone(), together.clone());
            move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                together.wait();
                now.fetch_sub(1, SeqCst);
                number
            }
        });
        let done = all(&Workers::default(), jobs).await;
        assert!(done.into_iter().eq((0..3 * MOST).map(Some)));
        assert_eq!(most.load(SeqCst), MOST);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn work_that_hangs_keeps_nothing_else_from_being_done() {
        let workers = Workers::default();
        let (releases, held): (Vec<_>, Vec<_>) = (0..quick()).map(|_| mpsc::channel::<()>()).unzip();
        let hanging = tokio::spawn({
            let workers = workers.clone();
            async move { all(&workers, held.into_iter().map(|held| move || held.recv().is_err())).await }
        });
        while workers.state().busy < quick() {
            tokio::task::yield_now().await;
        }
        for number in 0..10 {
            assert_eq!(workers.run(move || number).await, Some(number));
        }
        assert!(!hanging.is_finished());
        drop(releases);
        assert_eq!(hanging.await.unwrap(), vec![Some(true); quick()]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_ends_its_own_work_alone() {
        let workers = Workers::default();
        let done = all(&workers, (0..100).map(|number| move || assert_ne!(number % 10, 3))).await;
        assert!(done.iter().enumerate().all(|(number, done)| done.is_none() == (number % 10 == 3)));
        assert_eq!(workers.run(|| 1).await, Some(1));
    }
}
