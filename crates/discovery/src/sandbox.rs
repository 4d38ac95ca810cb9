//! Shuts a process in: it may calculate, take some memory and go on with the pipes that it has, and nothing else.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

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
    libc::SYS_tgkill,
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
    let calls: BTreeMap<i64, Vec<_>> = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(calls, not_permitted, SeccompAction::Allow, arch)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
