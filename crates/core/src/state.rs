//! The states of replicas and tasks, and which may follow which. `docs/design/` has the pictures.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a state")]
pub struct UnknownState(pub String);

macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every state.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Returns the word that is stored and sent.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownState;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok($name::$variant),)*
                    _ => Err(UnknownState(text.chars().take(40).collect())),
                }
            }
        }
    };
}

states!(
    /// The state of one copy of a version on one store. The site that owns the store is its authority.
    ReplicaState {
        /// A native file that is open for writing, or a copy that is being made. Not read.
        Writing = "writing",
        /// Its bytes were hashed and had the version's root when last looked at.
        Good = "good",
        /// Registered in place and not hashed yet.
        Unverified = "unverified",
        /// Holds an older version.
        Stale = "stale",
        /// Its bytes did not have the expected hash, or its file changed behind our back. Not read.
        Suspect = "suspect",
        /// Its file is gone.
        Lost = "lost",
        /// Its store is away for now.
        Offline = "offline",
        /// Must be staged from tape before it can be read.
        Nearline = "nearline",
    }
);

impl ReplicaState {
    /// Tells whether reads may be served from it.
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Good | Self::Unverified)
    }

    /// Tells whether `next` may follow. A state may always be reported again.
    pub const fn may_become(self, next: ReplicaState) -> bool {
        use ReplicaState::*;
        match (self, next) {
            (Writing, Writing | Good | Unverified | Suspect | Lost) => true,
            (Writing, _) => false,
            (Good | Unverified, _) => true,
            // Old bytes do not become the current version again; they can only go.
            (Stale, Stale | Lost | Suspect | Offline) => true,
            (Stale, _) => false,
            // Looked at again and found right, repaired, or given up.
            (Suspect, Suspect | Good | Lost | Stale | Offline | Writing) => true,
            (Suspect, _) => false,
            // Restored from elsewhere under the same key.
            (Lost, Lost | Writing | Good | Suspect | Stale | Offline) => true,
            (Lost, _) => false,
            (Offline, _) => true,
            (Nearline, _) => true,
        }
    }
}

states!(
    /// The state of a managed task.
    TaskState {
        /// Waits for a server to take it, at first or before a new attempt.
        Queued = "queued",
        /// A server holds its lease and works on it.
        Running = "running",
        /// Everything was done.
        Succeeded = "succeeded",
        /// Some items failed; the others were done.
        Partial = "partial",
        /// Gave up.
        Failed = "failed",
        /// Was cancelled.
        Cancelled = "cancelled",
    }
);

impl TaskState {
    /// Tells whether nothing more will happen, unless somebody retries it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Partial | Self::Failed | Self::Cancelled)
    }

    /// Tells whether `next` may follow.
    pub const fn may_become(self, next: TaskState) -> bool {
        use TaskState::*;
        match (self, next) {
            (Queued, Running | Cancelled | Failed) => true,
            // Back to the queue when its lease lapsed or a retryable fault ended the attempt.
            (Running, Queued | Succeeded | Partial | Failed | Cancelled) => true,
            // A retry by its owner.
            (Partial | Failed | Cancelled, Queued) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        for state in ReplicaState::ALL {
            assert_eq!(state.as_str().parse(), Ok(*state));
            assert_eq!(serde_json::to_string(state).unwrap(), format!("\"{state}\""));
            assert!(state.may_become(*state), "{state} may be reported again");
        }
        for state in TaskState::ALL {
            assert_eq!(state.as_str().parse(), Ok(*state));
            assert!(!state.may_become(*state), "{state} does not follow itself");
        }
    }

    #[test]
    fn what_must_never_happen_does_not() {
        use ReplicaState::*;
        assert!(!Stale.may_become(Good), "old bytes became current");
        assert!(!Suspect.may_become(Unverified), "a suspicion was forgotten without a look");
        assert!(!TaskState::Succeeded.may_become(TaskState::Queued));
        for state in TaskState::ALL {
            assert_eq!(state.is_final(), !state.may_become(TaskState::Cancelled));
        }
        for state in [Writing, Stale, Suspect, Lost, Offline, Nearline] {
            assert!(!state.is_readable());
        }
    }
}
