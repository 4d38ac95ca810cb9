//! What an attempt is busy with, and what holds it up.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use percale_catalog::TaskActivity;
use percale_mover::meter::Sample;
use percale_mover::verdict::judge;

use crate::fetch::Flow;

/// Samples that the rate and the verdict of the moment look back over; there is one a second.
const LOOK_BACK: usize = 5;

/// Samples of an attempt.
pub(super) struct Activity {
    /// Bytes that earlier attempts had done.
    begun_with: u64,
    samples: Mutex<VecDeque<Sample>>,
}

impl Activity {
    /// Begins to watch an attempt.
    pub fn new(begun_with: u64) -> Self {
        Self { begun_with, samples: Mutex::new(VecDeque::from([Sample::default()])) }
    }

    /// Tells of the last seconds; of the whole attempt if it has ended.
    pub fn look(&self, flow: &Flow, bytes_done: u64, has_ended: bool) -> TaskActivity {
        let mut now = flow.meter().sample();
        // What reads here, without a stream, is seen by what it has done.
        now.bytes = now.bytes.max(bytes_done.saturating_sub(self.begun_with));
        let before = {
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            let before = samples.front().copied().unwrap_or_default();
            samples.push_back(now);
            while samples.len() > LOOK_BACK {
                samples.pop_front();
            }
            before
        };
        let recent = if has_ended { now } else { now.since(&before) };
        let chosen = flow.chosen();
        let (transport, transport_reason) = flow.carried().describe().unzip();
        let verdict = judge(&recent, chosen.as_ref().and_then(|chosen| chosen.streams.as_ref()));
        TaskActivity {
            rate: rate(&recent),
            average: rate(&now),
            streams: now.open,
            streams_reason: chosen.map(|chosen| chosen.reason),
            transport,
            transport_reason: transport_reason.flatten(),
            bottleneck: verdict.as_ref().map(|verdict| verdict.bottleneck.as_str().to_owned()),
            reason: verdict.map(|verdict| verdict.reason),
        }
    }
}

fn rate(sample: &Sample) -> u64 {
    (sample.bytes as f64 / sample.at.as_secs_f64().max(1e-3)) as u64
}
