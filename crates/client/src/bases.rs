//! The addresses of a site, and how far it is.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use reqwest::Url;

/// The shortest round trip to a site, from how long its answers took.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip(AtomicU64);

impl RoundTrip {
    /// Notes that an answer took so long. The first one of all came over a new connection, and took three round trips: TCP,
    /// TLS, the request.
    pub fn note(&self, took: Duration, is_first: bool) {
        let took = if is_first { took / 3 } else { took };
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
        let _ =
            self.0.fetch_update(Relaxed, Relaxed, |known| (known == 0 || micros < known).then_some(micros));
    }

    pub fn shortest(&self) -> Option<Duration> {
        Some(self.0.load(Relaxed)).filter(|micros| *micros > 0).map(Duration::from_micros)
    }
}

/// The URLs of a site, each with a slash at its end, and which of them is asked now.
#[derive(Debug)]
pub(crate) struct Bases {
    urls: Vec<Url>,
    current: AtomicUsize,
}

impl Bases {
    /// Begins with the first of them; there is one at least.
    pub fn new(urls: Vec<Url>) -> Self {
        Self { urls, current: AtomicUsize::new(0) }
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// Returns the URL that is asked now.
    pub fn now(&self) -> &Url {
        &self.urls[self.current.load(Relaxed) % self.urls.len()]
    }

    /// Has the next URL asked from now on, since this one did not answer, unless somebody has turned already.
    pub fn turn_from(&self, at: usize) {
        let next = (at + 1) % self.urls.len();
        let _ = self.current.compare_exchange(at, next, Relaxed, Relaxed);
    }

    /// Returns the number of the URL that a request goes to.
    pub fn of(&self, url: &Url) -> usize {
        self.urls.iter().position(|base| url.as_str().starts_with(base.as_str())).unwrap_or_default()
    }

    /// Sends a request to the URL that is asked now, in place of another one.
    pub fn redirect(&self, url: &mut Url, from: usize) -> Option<()> {
        let rest = url.as_str().strip_prefix(self.urls.get(from)?.as_str())?;
        *url = Url::parse(&format!("{}{rest}", self.now())).ok()?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_counts_and_a_first_answer_takes_three() {
        let rtt = RoundTrip::default();
        assert_eq!(rtt.shortest(), None);
        let ms = Duration::from_millis;
        rtt.note(ms(150), true);
        assert_eq!(rtt.shortest(), Some(ms(50)));
        rtt.note(ms(80), false);
        assert_eq!(rtt.shortest(), Some(ms(50)));
        rtt.note(ms(49), false);
        assert_eq!(rtt.shortest(), Some(ms(49)));
    }
}
