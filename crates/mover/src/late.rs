//! What is late, since a line stands empty though bytes are waited for, and is asked for again.
//!
//! A connection that lost the last packets of its window is silent until a timer of its kernel ends, and then begins at a packet in a round
//! trip. Others make up for that as long as they have something to send. Once they have not, all wait for the one, and what it was to
//! bring is better asked for over another.

use std::time::Duration;

use crate::{Meter, Wait};

/// Times that what is late is asked for again.
const AGAIN: usize = 3;
/// What a stream has on its way at most, where the sender hands out the rest: the buffer of its connection, and what is read ahead of that.
const ON_ITS_WAY: u64 = 8 << 20;
/// What is seen in fewer round trips may be the pause between a request and its answer.
const ROUND_TRIPS: u32 = 3;
/// For so many times as long a transfer has gone on before it is known what is usual: a new connection needs six to eight round trips to get up to
/// speed, and what is over soon has not filled the queue of a line, in which packets are lost.
const KNOWN_AFTER: u32 = 10;
/// On a short path a stream may wait for as long for a disk.
const LEAST: Duration = Duration::from_millis(100);
/// The line is as good as empty at so much less than it has carried so far.
const FRACTION: f64 = 0.1;
/// So much of their time streams wait for bytes then: not for a disk of this side, or a limit.
const WAITING: f64 = 0.8;

/// What was asked for again in one transfer.
#[derive(Debug, Default)]
pub struct Late {
    times: usize,
}

impl Late {
    /// Waits until next to nothing comes, though all streams wait for it; for ever once enough was asked for again. `streams` tells how
    /// many there are. Whoever sends at a limited speed is not slow: it is the speed of all of the transfer so far that counts.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn lull(&self, meter: &Meter, rtt: Option<Duration>, streams: impl Fn() -> usize) {
        if self.times >= AGAIN {
            std::future::pending::<()>().await;
        }
        let window = rtt.map_or(LEAST, |rtt| (rtt * ROUND_TRIPS).max(LEAST));
        loop {
            let before = meter.sample();
            let open = streams();
            tokio::time::sleep(window).await;
            let since = meter.sample().since(&before);
            let speed = |bytes: u64, time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9);
            let is_slow = before.at >= window * KNOWN_AFTER
                && speed(since.bytes, since.at) < FRACTION * speed(before.bytes, before.at);
            let could_wait = since.at.as_secs_f64() * open.max(streams()) as f64;
            if is_slow && since.waited(Wait::Bytes).as_secs_f64() > WAITING * could_wait {
                return;
            }
        }
    }

    /// Tells whether so many bytes that are missing are asked for again over other streams, where of `most` so many are open. Then that is
    /// counted. Where all are open none is better than another; where much is missing they do not all stand still.
    pub fn ask_again(&mut self, missing: u64, open: usize, most: usize) -> bool {
        let may = self.times < AGAIN && missing > 0 && open < most && missing <= open as u64 * ON_ITS_WAY;
        self.times += usize::from(may);
        may
    }

    /// Tells whether anything was.
    pub fn was_asked_again(&self) -> bool {
        self.times > 0
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use super::*;

    const RTT: Option<Duration> = Some(Duration::from_millis(100));

    /// Brings so much in each step of 10 ms, the last of these for ever, while a stream waits for something. Tells after how many
    /// milliseconds that is a lull, if it is one within 10 s.
    async fn lull_of(steps: &[(usize, u64)], wait: Wait) -> Option<u128> {
        let meter = Arc::new(Meter::default());
        let began = tokio::time::Instant::now();
        let bring = async {
            for (count, bytes) in steps {
                for _ in 0..*count {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    meter.received(*bytes);
                }
            }
        };
        let late = Late::default();
        tokio::select! {
            biased;
            _ = async { tokio::join!(bring, meter.waiting(wait, pending::<()>())) } => unreachable!(),
            () = late.lull(&meter, RTT, || 1) => Some(began.elapsed().as_millis()),
            () = tokio::time::sleep(Duration::from_secs(10)) => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_falls_silent_is_noticed() {
        let at = lull_of(&[(400, 1_500_000), (1, 0)], Wait::Bytes).await.unwrap();
        assert!((4300..=4600).contains(&at), "{at}");
        // One connection that begins again.
        assert!(lull_of(&[(400, 1_500_000), (2000, 100_000)], Wait::Bytes).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_slow_all_the_time_or_waits_for_this_side_is_none() {
        assert_eq!(lull_of(&[(2000, 10)], Wait::Bytes).await, None);
        // Nobody knows yet what is usual.
        assert_eq!(lull_of(&[(10, 1_500_000), (50, 1_000), (2000, 1_500_000)], Wait::Bytes).await, None);
        assert_eq!(lull_of(&[(400, 1_500_000), (2000, 200_000)], Wait::Bytes).await, None);
        for wait in [Wait::Disk, Wait::Limit, Wait::Verify] {
            assert_eq!(lull_of(&[(400, 1_500_000), (1, 0)], wait).await, None, "{wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_much_is_asked_for_again_and_so_often() {
        let mut late = Late::default();
        assert!(!late.ask_again(0, 1, 4) && !late.ask_again(1, 0, 4) && !late.ask_again(1, 4, 4));
        assert!(!late.ask_again(ON_ITS_WAY + 1, 1, 4) && !late.was_asked_again());
        assert!((0..AGAIN).all(|_| late.ask_again(2 * ON_ITS_WAY, 2, 4)) && late.was_asked_again());
        assert!(!late.ask_again(1, 1, 4));
        let meter = Meter::default();
        let waits = tokio::time::timeout(Duration::from_secs(60), late.lull(&meter, None, || 0));
        assert!(waits.await.is_err());
    }
}
