//! What is known of the way to a member.

use std::collections::VecDeque;
use std::time::Duration;

use percale_core::Timestamp;
use percale_trust::SitePublicKey;

/// Exchanges of which the round trip is remembered: a way that has become longer is known after so many.
const ROUND_TRIPS: usize = 8;

/// What is known of the way to a member.
#[derive(Debug, Clone, Default)]
pub struct Contact {
    /// When it last answered.
    pub seen: Option<Timestamp>,
    /// The shortest round trip of the last exchanges; the others waited for something.
    pub rtt: Option<Duration>,
    /// The round trips of the last exchanges.
    rtts: VecDeque<Duration>,
    /// How many bytes it keeps in flight on one connection, as it says.
    pub window: Option<u64>,
    /// How far its clock is ahead, in microseconds.
    pub clock_us: Option<i64>,
    /// Why the last exchange failed.
    pub fault: Option<String>,
    /// Why a space of it cannot be followed.
    pub trouble: Option<String>,
    /// The key that it is said to have, and that nothing proves.
    pub claimed_key: Option<SitePublicKey>,
}

impl Contact {
    /// Notes how an exchange went: its round trip and how far the clock is ahead, as far as these were measured, or why there was none.
    pub(crate) fn note(&mut self, outcome: Result<(Option<Duration>, Option<i64>), String>) {
        match outcome {
            Ok((rtt, clock_us)) => {
                self.seen = Some(Timestamp::now());
                self.clock_us = clock_us.or(self.clock_us);
                self.fault = None;
                self.measured(rtt);
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn measured(&mut self, rtt: Option<Duration>) {
        let Some(rtt) = rtt else { return };
        if self.rtts.len() == ROUND_TRIPS {
            self.rtts.pop_front();
        }
        self.rtts.push_back(rtt);
        self.rtt = self.rtts.iter().min().copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_of_the_last_round_trips_counts() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let mut contact = Contact::default();
        contact.note(Ok((ms(51), None)));
        contact.note(Ok((ms(300), Some(7))));
        contact.note(Ok((None, None)));
        assert_eq!((contact.rtt, contact.clock_us), (ms(51), Some(7)));
        contact.note(Err("away".into()));
        assert!(contact.fault.is_some() && contact.rtt == ms(51));
        // The way has become longer.
        (0..ROUND_TRIPS).for_each(|_| contact.note(Ok((ms(120), None))));
        assert_eq!(contact.rtt, ms(120));
        assert!(contact.fault.is_none());
    }
}
