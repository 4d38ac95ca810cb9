//! What holds a transfer up.
//!
//! The parts of a stream work side by side: while one group is written, the next is on its way. So the part that is busy for
//! nearly all of the time is the one that the others wait for. [`judge`] names it, with the numbers that say so; where the
//! numbers leave two possible, it names both.

use std::fmt;
use std::time::Duration;

use crate::meter::{Sample, Wait};
use crate::tuning::Streams;

/// Stream time below which nothing is said.
const LEAST_TIME: Duration = Duration::from_millis(200);
/// No part that took less than this share of the time holds anything up.
const LEAST_SHARE: f64 = 0.25;
/// Things smaller than this on average are small: what each costs by itself outweighs its bytes.
const SMALL: f64 = 256.0 * 1024.0;
/// From this share of what windows and round trip allow on, the path is taken to be full.
const FULL: f64 = 0.7;

/// The part that the others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// The streams carry what their windows allow over the round trip.
    Network,
    /// The other site's disk or the line: from here they look alike.
    SourceOrNetwork,
    /// The own store that is read.
    SourceDisk,
    /// Hashing at the destination.
    Verification,
    /// The store that is written.
    DestinationDisk,
    /// The catalog here, or the space's home.
    Catalog,
    /// What each file costs at the destination, whatever its size.
    SmallFiles,
    /// A limit on the speed.
    Limit,
    /// Other tasks that use the same source.
    Turn,
    /// Nothing that is measured.
    Unclear,
}

impl Bottleneck {
    /// Returns its name in the interface.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::SourceOrNetwork => "source_or_network",
            Self::SourceDisk => "source_disk",
            Self::Verification => "verification",
            Self::DestinationDisk => "destination_disk",
            Self::Catalog => "catalog",
            Self::SmallFiles => "small_files",
            Self::Limit => "limit",
            Self::Turn => "turn",
            Self::Unclear => "unclear",
        }
    }
}

/// What holds a transfer up, and why that is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The part.
    pub bottleneck: Bottleneck,
    /// The numbers, in words.
    pub reason: String,
}

/// Judges what happened between two samples; `chosen` is how the connections were chosen, if the bytes come from another site.
/// Says nothing where hardly anything happened.
pub fn judge(between: &Sample, chosen: Option<&Streams>) -> Option<Verdict> {
    if between.streams < LEAST_TIME || between.at.is_zero() {
        return None;
    }
    let share = |wait: Wait| between.waited(wait).as_secs_f64() / between.streams.as_secs_f64();
    let seconds = between.at.as_secs_f64();
    let rate = between.bytes as f64 / seconds;
    let streams = (between.streams.as_secs_f64() / seconds).round().max(1.0);
    let flow = format!("{} over {}", Speed(rate), plural(streams, "stream"));
    let verdict = |bottleneck, why: String| Some(Verdict { bottleneck, reason: format!("{flow}; {why}") });

    const ALL: [Wait; 7] =
        [Wait::Limit, Wait::Turn, Wait::Bytes, Wait::OwnDisk, Wait::Verify, Wait::Disk, Wait::Catalog];
    let most = ALL.into_iter().max_by(|left, right| share(*left).total_cmp(&share(*right)))?;
    let size = between.bytes as f64 / between.items.max(1) as f64;
    let per_file = share(Wait::Disk) + share(Wait::Catalog);
    let is_small = between.items >= 10 && size < SMALL;
    if is_small && matches!(most, Wait::Disk | Wait::Catalog) && per_file >= 2.0 * LEAST_SHARE {
        let why = format!(
            "{:.0} files/s of {} on average, and for each of them the disk ({}) and the catalog ({}) were waited for",
            between.items as f64 / seconds,
            Bytes(size),
            Percent(share(Wait::Disk)),
            Percent(share(Wait::Catalog)),
        );
        return verdict(Bottleneck::SmallFiles, why);
    }
    let part = Percent(share(most));
    if share(most) < LEAST_SHARE {
        return verdict(
            Bottleneck::Unclear,
            format!("they waited for nothing for more than {part} of the time"),
        );
    }
    let waited = |what: &str| format!("the streams waited for {what} {part} of the time");
    match most {
        Wait::Bytes => {
            let (bottleneck, why) = of_bytes(rate, streams, chosen);
            verdict(bottleneck, format!("{}; {why}", waited("bytes")))
        }
        Wait::OwnDisk => verdict(Bottleneck::SourceDisk, waited("the store that is read")),
        Wait::Verify => {
            verdict(Bottleneck::Verification, format!("bytes were hashed and compared {part} of the time"))
        }
        Wait::Disk => verdict(Bottleneck::DestinationDisk, waited("the store that is written")),
        Wait::Catalog => verdict(Bottleneck::Catalog, waited("the catalog and the space's home")),
        Wait::Limit => {
            verdict(Bottleneck::Limit, format!("a limit held the streams back {part} of the time"))
        }
        Wait::Turn => verdict(
            Bottleneck::Turn,
            format!("{}, which other tasks use", waited("their turn at the source")),
        ),
    }
}

/// Tells what can be told of the other end and the line: whether connections carry what they can.
fn of_bytes(rate: f64, streams: f64, chosen: Option<&Streams>) -> (Bottleneck, String) {
    let Some((rtt, window)) = chosen.and_then(|chosen| Some((chosen.rtt?, chosen.window))) else {
        let why = "no round trip was measured, so the line and the source's disk cannot be told apart";
        return (Bottleneck::SourceOrNetwork, why.to_owned());
    };
    let most = streams * window as f64 / rtt.as_secs_f64().max(1e-6);
    let path = format!(
        "{} of {:.1} MB in flight each carry {} over a round trip of {:.1} ms",
        plural(streams, "stream"),
        window as f64 / 1e6,
        Speed(most),
        rtt.as_secs_f64() * 1e3
    );
    match rate >= FULL * most {
        true => (Bottleneck::Network, path),
        false => (
            Bottleneck::SourceOrNetwork,
            format!("{path}, so either the line or the source's disk gives less"),
        ),
    }
}

fn plural(number: f64, what: &str) -> String {
    if number == 1.0 { format!("1 {what}") } else { format!("{number:.0} {what}s") }
}

/// Bytes a second, shown in bits with three digits.
pub struct Speed(pub f64);

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8.0;
        let (value, unit) = match bits {
            bits if bits >= 999.5e6 => (bits / 1e9, "Gbit/s"),
            bits if bits >= 999.5e3 => (bits / 1e6, "Mbit/s"),
            bits => (bits / 1e3, "kbit/s"),
        };
        let digits = match value {
            value if value < 9.995 => 2,
            value if value < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}

struct Bytes(f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1e3 => write!(f, "{bytes:.0} B"),
            bytes => write!(f, "{:.1} kB", bytes / 1e3),
        }
    }
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} %", (self.0 * 100.0).min(100.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten seconds of so many streams, with so many bytes and items and these shares of the time.
    fn sample(streams: u32, bytes: u64, items: u64, shares: &[(Wait, f64)]) -> Sample {
        let at = Duration::from_secs(10);
        let all = at * streams;
        let sample = Sample { at, bytes, items, open: streams, streams: all, ..Sample::default() };
        shares.iter().fold(sample, |sample, (wait, share)| sample.with(*wait, all.mul_f64(*share)))
    }

    fn path(ms: u64) -> Streams {
        Streams::choose(Some(Duration::from_millis(ms)), 3_355_443)
    }

    #[test]
    fn the_part_that_is_busy_most_is_named() {
        use Bottleneck as B;
        use Wait as W;
        for (streams, bytes, items, shares, bottleneck) in [
            (
                10,
                1_412_500_000,
                1,
                vec![(W::Bytes, 0.93), (W::Disk, 0.3), (W::Verify, 0.1)],
                B::SourceOrNetwork,
            ),
            (10, 6_500_000_000, 9, vec![(W::Bytes, 0.9), (W::Disk, 0.7)], B::Network),
            (
                4,
                2_000_000_000,
                9,
                vec![(W::Disk, 0.95), (W::Bytes, 0.2), (W::Verify, 0.3)],
                B::DestinationDisk,
            ),
            (4, 2_000_000_000, 9, vec![(W::Verify, 0.95), (W::Bytes, 0.2), (W::Disk, 0.3)], B::Verification),
            (1, 2_000_000_000, 2, vec![(W::OwnDisk, 0.6), (W::Verify, 0.2), (W::Disk, 0.2)], B::SourceDisk),
            (8, 100_000_000, 10_000, vec![(W::Catalog, 0.4), (W::Disk, 0.3), (W::Bytes, 0.3)], B::SmallFiles),
            (
                8,
                100_000_000,
                10_000,
                vec![(W::Catalog, 0.1), (W::Disk, 0.1), (W::Bytes, 0.8)],
                B::SourceOrNetwork,
            ),
            (8, 800_000_000, 800, vec![(W::Catalog, 0.6), (W::Bytes, 0.3)], B::Catalog),
            (2, 250_000_000, 2, vec![(W::Limit, 0.9), (W::Bytes, 0.08)], B::Limit),
            (2, 0, 0, vec![(W::Turn, 1.0)], B::Turn),
            (2, 5_000_000, 1, vec![(W::Bytes, 0.2), (W::Disk, 0.1)], B::Unclear),
        ] {
            let verdict = judge(&sample(streams, bytes, items, &shares), Some(&path(50))).unwrap();
            assert_eq!(verdict.bottleneck, bottleneck, "{shares:?}: {}", verdict.reason);
        }
    }

    #[test]
    fn the_reason_has_the_numbers() {
        let reason = |sample: Sample, path: Option<&Streams>| judge(&sample, path).unwrap().reason;
        let slow = sample(10, 1_412_500_000, 1, &[(Wait::Bytes, 0.93)]);
        assert_eq!(
            reason(slow, Some(&path(50))),
            "1.13 Gbit/s over 10 streams; the streams waited for bytes 93 % of the time; 10 streams of 3.4 MB in flight \
             each carry 5.37 Gbit/s over a round trip of 50.0 ms, so either the line or the source's disk gives less"
        );
        assert!(reason(slow, None).ends_with("cannot be told apart"));
        let small = sample(8, 100_000_000, 10_000, &[(Wait::Catalog, 0.41), (Wait::Disk, 0.3)]);
        assert_eq!(
            reason(small, None),
            "80.0 Mbit/s over 8 streams; 1000 files/s of 10.0 kB on average, and for each of them the disk (30 %) and the \
             catalog (41 %) were waited for"
        );
        let limited = sample(1, 12_500_000, 0, &[(Wait::Limit, 0.5)]);
        assert_eq!(
            reason(limited, None),
            "10.0 Mbit/s over 1 stream; a limit held the streams back 50 % of the time"
        );
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(judge(&Sample::default(), None), None);
        let short =
            Sample { at: Duration::from_secs(1), streams: Duration::from_millis(199), ..Sample::default() };
        assert_eq!(judge(&short, None), None);
    }

    #[test]
    fn speeds_have_three_digits() {
        for (bytes, shown) in [
            (0.0, "0.00 kbit/s"),
            (125_000.0, "1.00 Mbit/s"),
            (124_999.0, "1.00 Mbit/s"),
            (1.25e6, "10.0 Mbit/s"),
            (12.5e6, "100 Mbit/s"),
            (141.25e6, "1.13 Gbit/s"),
        ] {
            assert_eq!(Speed(bytes).to_string(), shown);
        }
    }
}
