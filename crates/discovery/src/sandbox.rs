//! Shuts a process in: it may calculate, take some memory and go on with the pipes that it has, and nothing else.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// Most memory, in bytes: what a header within the bounds takes many times over.
const MEMORY: u64 = 1 << 30;

/// System calls that are left. All others fail as not permitted.
const CALLS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Shuts this process in, for good. Returns what of it did not work, since this system does not have it.
pub fn shut_in() -> Vec<String> {
    let mut open = Vec::new();
    let limits = [
        (Resource::As, MEMORY, "memory"),
        (Resource::Fsize, 0, "the size of files"),
        (Resource::Core, 0, "core files"),
        (Resource::Nofile, 0, "open files"),
        (Resource::Nproc, 0, "processes"),
    ];
    for (resource, most, what) in limits {
        if let Err(error) = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }) {
            open.push(format!("no limit of {what}: {error}"));
        }
    }
    if let Err(error) = filter_calls() {
        open.push(format!("system calls are not filtered: {error}"));
    }
    open
}

fn filter_calls() -> Result<(), Box<dyn std::error::Error>> {
    let not_permitted = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let mut calls: BTreeMap<i64, Vec<_>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // A process that aborts sends itself a signal; others of the same user are to have none.
    let own = u64::from(std::process::id());
    let to_itself = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own)?;
    calls.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![to_itself])?]);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(calls, not_permitted, SeccompAction::Allow, arch)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    /// Says to this test, run again, that it is the process that is shut in.
    const SHUT_IN: &str = "PERCALE_TEST_SHUT_IN";

    #[test]
    fn a_process_that_is_shut_in_can_abort() {
        if std::env::var_os(SHUT_IN).is_some() {
            assert_eq!(shut_in(), Vec::<String>::new());
            std::process::abort();
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "sandbox::tests::a_process_that_is_shut_in_can_abort", "--nocapture"]);
        let ended = again.env(SHUT_IN, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
    }
}
