//! Hears of changes below a followed directory, so that the next pass begins soon and not only when its time comes.
//!
//! The kernel tells of names that come and go and of files that are closed after writing (inotify), on this host only. What it does not
//! tell of, such as what another host writes to a shared file system, directories past the limit, or a change just before its directory
//! is watched, is found when the pass's time comes. So this only ever saves waiting.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percale_core::ErrorCode;
use percale_core::ids::TaskId;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::AppState;
use crate::app::system_caller;

/// Most directories that are watched for one task. Each takes about a kilobyte of the kernel's memory.
const DIRECTORIES: usize = 20_000;
/// Least time between something that happened and the next pass: what comes in many pieces is seen by one pass.
const QUIET: Duration = Duration::from_millis(500);
/// A pass takes no more than a part of the time, however much happens: the wait is at least so many times as long as the last one took.
const REST: u32 = 3;
/// How often it is looked whether the task has ended, for example since it was cancelled.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How often a task is looked for that is not in its queue yet.
const TRIES: u32 = 10;

/// Directories that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    root: PathBuf,
    inotify: OwnedFd,
    seen: HashSet<i32>,
    is_full: bool,
}

impl Watch {
    /// Begins to watch below the root of a store; nothing if the kernel has no room for it.
    pub fn new(root: &Path) -> Option<Self> {
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => {
                Some(Self { root: root.to_owned(), inotify, seen: HashSet::new(), is_full: false })
            }
            Err(errno) => {
                tracing::info!(%errno, "cannot watch directories; they are looked at from time to time");
                None
            }
        }
    }

    /// Watches a directory, named by its key; nothing means the root.
    pub fn add(&mut self, key: Option<&str>) {
        if self.is_full {
            return;
        }
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        let path = key.map_or_else(|| self.root.clone(), |key| self.root.join(key));
        match inotify::add_watch(&self.inotify, &path, flags) {
            Ok(watch) => {
                self.seen.insert(watch);
            }
            Err(Errno::NOSPC | Errno::NOMEM) => self.is_full = true,
            // Gone, or not readable, which the pass says by itself.
            Err(_) => {}
        }
        self.is_full |= self.seen.len() >= DIRECTORIES;
        if self.is_full {
            tracing::info!(
                directories = self.seen.len(),
                "no more directories are watched; others are looked at from time to time"
            );
        }
    }

    /// Waits for the first thing that happens, for at most so long, and then ends the task's wait for its next pass, which
    /// watches anew. `took` is how long the last pass took.
    pub async fn wake(self, app: AppState, task: TaskId, within: Duration, took: Duration) {
        let rest = tokio::time::sleep(took * REST);
        let heard = async {
            rest.await;
            #[expect(
                deprecated,
                reason = "sound for a descriptor that is owned; its successor is unsafe to call"
            )]
            let watched = AsyncFd::new(self.inotify);
            let Ok(watched) = watched else { return std::future::pending().await };
            loop {
                let Ok(mut guard) = watched.readable().await else { return std::future::pending().await };
                if has_news(watched.get_ref()) {
                    return;
                }
                guard.clear_ready();
            }
        };
        let ended = async {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                match app.catalog.task(&system_caller(), task).await {
                    Ok(task) if task.state.is_final() => return,
                    Err(error) if error.code() == ErrorCode::NotFound => return,
                    _ => {}
                }
            }
        };
        tokio::select! {
            () = heard => {}
            () = ended => return,
            () = tokio::time::sleep(within) => return,
            () = app.stopping.cancelled() => return,
        }
        for _ in 0..TRIES {
            tokio::time::sleep(QUIET).await;
            match app.catalog.hasten_task(task).await {
                Ok(true) => {
                    app.tasks.wake();
                    return;
                }
                // It is not in the queue yet, or not any more.
                Ok(false) => {}
                Err(error) => tracing::debug!(%task, %error, "cannot end a task's wait; its time will come"),
            }
        }
    }
}

/// Tells whether something happened that a pass may find. A file that was only made is still being written; its end
/// will be heard of.
fn has_news(watched: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut events = inotify::Reader::new(watched, &mut buffer);
    let mut has_news = false;
    while let Ok(event) = events.next() {
        let what = event.events();
        let is_new_file = what.contains(ReadFlags::CREATE) && !what.contains(ReadFlags::ISDIR);
        // What the store itself does below `.percale` in the root.
        let is_own = event.file_name().is_some_and(|name| name.to_bytes() == b".percale");
        has_news |= !is_new_file && !is_own && !what.contains(ReadFlags::IGNORED);
    }
    has_news
}
