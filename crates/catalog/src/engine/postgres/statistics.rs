//! What the planner knows of the tables.
//!
//! PostgreSQL looks at a table by itself up to a minute after much of it has changed. Until then what is asked of a young catalog that has
//! grown fast is planned as if little were there, and to look up a value may be to go along an index of all of them. So it is told to look
//! each time that what this server wrote has doubled: often while there is little, and ten times for a million rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deadpool_postgres::Pool;

/// Rows that are so few that no plan is a bad one.
const FEW: u64 = 1000;

/// Counts what is written, and has it looked at.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    written: AtomicU64,
}

impl Statistics {
    /// Notes that rows were written.
    pub fn note(self: &Arc<Self>, rows: u64, pool: &Pool) {
        let before = self.written.fetch_add(rows, Ordering::Relaxed);
        if has_doubled(before, before.saturating_add(rows)) {
            tokio::spawn(analyze(pool.clone()));
        }
    }
}

fn has_doubled(before: u64, now: u64) -> bool {
    now >= FEW && (before / FEW).checked_ilog2() < (now / FEW).checked_ilog2()
}

async fn analyze(pool: Pool) {
    let Ok(client) = pool.get().await else { return };
    if let Err(error) = client.batch_execute("ANALYZE entry, attribute, replica").await {
        tracing::debug!(%error, "cannot have the tables of the catalog looked at; PostgreSQL does so by itself");
    }
}

#[cfg(test)]
mod tests {
    use super::has_doubled;

    #[test]
    fn tables_are_looked_at_when_they_have_doubled() {
        assert!(!has_doubled(0, 999));
        assert!(has_doubled(999, 1000));
        assert!(has_doubled(0, 50_000));
        assert!(!has_doubled(1000, 1999));
        let steps = (0..1_000_000).step_by(100);
        assert_eq!(steps.filter(|written| has_doubled(*written, written + 100)).count(), 10);
    }
}
