//! Blocking work, as the service or as the caller's local account.

use std::sync::Arc;

use rustix::process::{Gid, Uid};

use super::workers::Workers;
use crate::{Error, ErrorKind, Operation, Result};

/// A local account, as the site's user database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// Does blocking work of a store, as somebody.
#[derive(Debug, Clone, Default)]
pub(super) struct Executor {
    workers: Workers,
    identity: Identity,
}

/// As whom work is done.
#[derive(Debug, Clone, Default)]
enum Identity {
    /// As the account of this process.
    #[default]
    Service,
    /// As a caller's account.
    Account(Arc<Account>),
    /// Accounts are mapped, and there is none: only reserved keys and staged files may be touched.
    Nobody,
}

impl Executor {
    /// Works as the account of this process.
    pub(super) fn service(&self) -> Self {
        Self { workers: self.workers.clone(), identity: Identity::Service }
    }

    /// Works as a caller's account.
    pub(super) fn account(&self, account: Account) -> Self {
        Self { workers: self.workers.clone(), identity: Identity::Account(Arc::new(account)) }
    }

    /// Works on nothing that needs an account.
    pub(super) fn nobody(&self) -> Self {
        Self { workers: self.workers.clone(), identity: Identity::Nobody }
    }

    /// Tells whether it works as a caller's account.
    pub(super) fn is_account(&self) -> bool {
        matches!(self.identity, Identity::Account(_))
    }

    /// Returns as whom to work on keys. What is reserved belongs to the service unless there is an account.
    pub(super) fn for_keys(&self, all_reserved: bool) -> Self {
        match self.identity {
            Identity::Nobody if all_reserved => self.service(),
            _ => self.clone(),
        }
    }

    /// Does blocking work beside the runtime's own threads.
    ///
    /// # Cancellation
    /// Dropping the future does not stop the work.
    pub(super) async fn run<T, W>(&self, operation: Operation, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce() -> Result<T> + Send + 'static,
    {
        let done = match &self.identity {
            Identity::Service => self.workers.run(work).await,
            Identity::Account(account) => {
                let account = account.clone();
                self.workers.run(move || as_account(operation, &account, work)).await
            }
            Identity::Nobody => {
                return Err(Error::new(ErrorKind::Denied, operation)
                    .detail("the store maps accounts, and the caller has none here"));
            }
        };
        let broke_off = || Err(Error::new(ErrorKind::Other, operation).detail("the work broke off"));
        done.unwrap_or_else(broke_off)
    }
}

/// Runs work on a thread that takes the account and ends with it, so that no other work can run as the wrong one.
///
/// Linux keeps credentials for each thread; the file system's ids follow the effective ones, and a thread that leaves
/// user 0 loses its capabilities.
fn as_account<T: Send>(
    operation: Operation,
    account: &Account,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let ended =
        || Err(Error::new(ErrorKind::Other, operation).detail("the thread of the account ended early"));
    std::thread::scope(|scope| {
        let run = || {
            take(account).map_err(|errno| {
                Error::new(ErrorKind::Denied, operation)
                    .detail(format!("cannot act as user {}", account.uid))
                    .caused_by(std::io::Error::from(errno))
            })?;
            work()
        };
        match std::thread::Builder::new().name("store-account".into()).spawn_scoped(scope, run) {
            Ok(thread) => thread.join().unwrap_or_else(|_| ended()),
            Err(error) => Err(Error::from_io(operation, error)),
        }
    })
}

fn take(account: &Account) -> rustix::io::Result<()> {
    // `-1` means "leave as it is" to the kernel, so it must never arrive there as an id.
    if account.uid == u32::MAX || account.gid == u32::MAX || account.groups.contains(&u32::MAX) {
        return Err(rustix::io::Errno::INVAL);
    }
    let gid = Gid::from_raw(account.gid);
    let uid = Uid::from_raw(account.uid);
    let groups: Vec<Gid> = account.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Fails unless this process may take other accounts.
pub(super) fn check_may_change() -> Result<()> {
    let own = Account {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
    };
    as_account(Operation::Open, &own, || Ok(())).map_err(|error| {
        Error::unsupported(
            Operation::Open,
            "mapped accounts need a service that may change accounts (CAP_SETUID and CAP_SETGID, or root)",
        )
        .caused_by(error)
    })
}
