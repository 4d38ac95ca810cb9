//! What all streams of one task share: where their time is counted, how fast they may be, and whose turn it is at a source.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use percale_client::Transport;
use percale_core::Rate;
use percale_core::ids::SiteId;
use percale_mover::limit::most_streams;
use percale_mover::{Bucket, Meter, Streams, Wait};
use tokio::sync::OwnedSemaphorePermit;

use crate::traffic::Traffic;

/// The flow of a task's bytes. Cheap to clone.
#[derive(Clone)]
pub struct Flow(Arc<Shared>);

struct Shared {
    meter: Meter,
    /// The task's own limit.
    own: Option<Bucket>,
    traffic: Arc<Traffic>,
    /// Whose task it is, if it is one.
    owner: Option<String>,
    turns: Mutex<HashMap<SiteId, Arc<tokio::sync::Mutex<Weak<Permits>>>>>,
    chosen: Mutex<Option<Chosen>>,
    carried: Mutex<Carried>,
}

/// How the streams of a task have travelled so far.
#[derive(Debug, Clone, Default)]
pub struct Carried {
    /// Over TLS.
    pub encrypted: u64,
    /// Without encryption, authenticated.
    pub plain: u64,
    /// Why the last one of the first kind was one, where both sites may have agreed on the second.
    pub why_encrypted: Option<String>,
}

/// How many streams were opened last, and why so many.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// How the path asked for them; nothing if small objects come in batches.
    pub streams: Option<Streams>,
    /// The number, with its reason.
    pub reason: String,
}

impl Carried {
    /// Says how, as tasks show it, and why if that needs a word. Nothing where there were no streams.
    pub fn describe(&self) -> Option<(String, Option<String>)> {
        let Self { encrypted, plain, why_encrypted } = self;
        Some(match (plain, encrypted) {
            (0, 0) => return None,
            (0, _) => ("tls".to_owned(), why_encrypted.clone()),
            (_, 0) => ("integrity_only".to_owned(), None),
            _ => {
                let why = why_encrypted.as_deref().unwrap_or("from sites with which nothing else was agreed");
                let reason = format!("{encrypted} of {} streams came over TLS: {why}", encrypted + plain);
                ("mixed".to_owned(), Some(reason))
            }
        })
    }
}

/// What a turn is made of: a permit of the source, and one of the owner's share in it.
#[derive(Debug)]
pub struct Permits {
    _source: OwnedSemaphorePermit,
    _share: Option<OwnedSemaphorePermit>,
}

/// A task's turn at a source, which its streams share.
pub type Turn = Arc<Permits>;

impl Flow {
    /// Makes one for a task, with its owner, or for something that belongs to none.
    pub fn new(traffic: Arc<Traffic>, limit: Option<Rate>, owner: Option<String>) -> Self {
        let (turns, chosen, carried) = (Mutex::default(), Mutex::default(), Mutex::default());
        let own = limit.map(Bucket::new);
        Self(Arc::new(Shared { meter: Meter::default(), own, traffic, owner, turns, chosen, carried }))
    }

    /// Returns where time is counted.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// Returns the slowest limit of the moment.
    fn limit(&self) -> Option<Rate> {
        let own = self.0.own.as_ref().and_then(Bucket::rate);
        own.into_iter().chain(self.0.traffic.into.rate()).min()
    }

    /// Notes that bytes came from another site, and waits until others may follow.
    pub async fn admit(&self, bytes: u64) {
        self.0.traffic.note_moving();
        if self.limit().is_none() {
            return;
        }
        let Shared { meter, own, traffic, .. } = &*self.0;
        let both = async {
            if let Some(own) = own {
                own.take(bytes).await;
            }
            traffic.into.take(bytes).await;
        };
        meter.waiting(Wait::Limit, both).await;
    }

    /// Returns how many streams are to be open at most, of so many.
    pub fn at_most(&self, streams: usize) -> usize {
        self.limit().map_or(streams, |limit| streams.min(most_streams(limit)))
    }

    /// Decides how many streams a large object comes over.
    pub fn choose(&self, streams: Streams) -> usize {
        let count = self.at_most(streams.count);
        let reason = match self.limit().filter(|_| count < streams.count) {
            Some(limit) => format!("{count} of {streams}; a limit of {limit} keeps no more busy"),
            None => streams.to_string(),
        };
        *self.chosen_mut() = Some(Chosen { streams: Some(streams), reason });
        count
    }

    /// Notes that small objects come in so many batches at once, unless large ones come too.
    pub fn note_batches(&self, most: usize) {
        let reason = format!("small files in batches, {most} at once at most");
        self.chosen_mut().get_or_insert(Chosen { streams: None, reason });
    }

    /// Returns how many streams were opened last, and why.
    pub fn chosen(&self) -> Option<Chosen> {
        self.chosen_mut().clone()
    }

    fn chosen_mut(&self) -> MutexGuard<'_, Option<Chosen>> {
        self.0.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a stream travels that was opened.
    pub fn note_transport(&self, transport: Transport) {
        let mut carried = self.0.carried.lock().unwrap_or_else(PoisonError::into_inner);
        match transport {
            Transport::IntegrityOnly => carried.plain += 1,
            Transport::Tls(why) => {
                carried.encrypted += 1;
                carried.why_encrypted = why.or(carried.why_encrypted.take());
            }
        }
    }

    /// Returns how the streams have travelled.
    pub fn carried(&self) -> Carried {
        self.0.carried.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the task's turn at a source. It lasts for as long as any of the task's streams holds it.
    pub async fn turn(&self, site: SiteId) -> Option<Turn> {
        let turn = {
            let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.entry(site).or_default().clone()
        };
        let wait = async {
            let mut turn = turn.lock().await;
            if let Some(held) = turn.upgrade() {
                return Some(held);
            }
            // They are never closed. First the owner's, so that nobody stands in the queue of the source who may not have it.
            let traffic = &self.0.traffic;
            let share = match &self.0.owner {
                Some(owner) => Some(traffic.share(site, owner).acquire_owned().await.ok()?),
                None => None,
            };
            let source = traffic.source(site).acquire_owned().await.ok()?;
            let held = Arc::new(Permits { _source: source, _share: share });
            *turn = Arc::downgrade(&held);
            Some(held)
        };
        self.0.meter.waiting(Wait::Turn, wait).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::config::TransfersConfig;

    fn traffic(change: impl FnOnce(&mut TransfersConfig)) -> Arc<Traffic> {
        let mut config = TransfersConfig::default();
        change(&mut config);
        Arc::new(Traffic::new(&config))
    }

    #[tokio::test]
    async fn so_many_tasks_use_a_source_and_the_next_follows() {
        let traffic = traffic(|config| config.per_source = 2);
        let (one, two) = (SiteId::new(), SiteId::new());
        let flows: Vec<Flow> = (0..3).map(|_| Flow::new(traffic.clone(), None, None)).collect();
        let first = flows[0].turn(one).await.unwrap();
        let _second = flows[1].turn(one).await.unwrap();
        let mut third = Box::pin(flows[2].turn(one));
        assert!(third.as_mut().now_or_never().is_none(), "two are there already");
        assert!(flows[2].turn(two).now_or_never().is_some(), "another source is free");
        // Another stream of a task that is there already.
        let again = flows[0].turn(one).now_or_never().flatten().unwrap();
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the task still has a stream");
        drop(again);
        assert!(third.await.is_some());
    }

    #[tokio::test]
    async fn one_owner_leaves_a_turn_to_others() {
        let traffic = traffic(|config| config.per_source = 3);
        let site = SiteId::new();
        let of = |owner: &str| Flow::new(traffic.clone(), None, Some(owner.to_owned()));
        let alice: Vec<Flow> = (0..3).map(|_| of("alice")).collect();
        let first = alice[0].turn(site).await.unwrap();
        let _second = alice[1].turn(site).await.unwrap();
        let mut third = Box::pin(alice[2].turn(site));
        assert!(third.as_mut().now_or_never().is_none(), "the last one is not hers");
        let bob = of("bob");
        let his = bob.turn(site).now_or_never().flatten().unwrap();
        drop(first);
        assert!(third.await.is_some());
        drop(his);
        // Where there is one turn, whoever comes first has it.
        let traffic =
            Arc::new(Traffic::new(&TransfersConfig { per_source: 1, ..TransfersConfig::default() }));
        assert!(Flow::new(traffic, None, Some("alice".into())).turn(site).now_or_never().is_some());
    }

    #[tokio::test]
    async fn how_streams_travelled_is_told() {
        let flow = Flow::new(traffic(|_| {}), None, None);
        assert_eq!(flow.carried().describe(), None);
        flow.note_transport(Transport::IntegrityOnly);
        assert_eq!(flow.carried().describe(), Some(("integrity_only".into(), None)));
        flow.note_transport(Transport::Tls(Some("it was altered".into())));
        flow.note_transport(Transport::Tls(None));
        let (transport, reason) = flow.carried().describe().unwrap();
        assert_eq!(transport, "mixed");
        assert_eq!(reason.unwrap(), "2 of 3 streams came over TLS: it was altered");
    }

    #[tokio::test]
    async fn a_limit_keeps_few_streams_open_and_says_so() {
        let traffic = traffic(|config| config.limit = Some("8Mbit/s".parse().unwrap()));
        let streams = Streams::choose(Some(std::time::Duration::from_millis(50)), 3_355_443);
        let flow = Flow::new(traffic.clone(), None, None);
        assert_eq!((flow.choose(streams), flow.at_most(8)), (3, 3));
        let reason = flow.chosen().unwrap().reason;
        assert!(reason.starts_with("3 of 10 streams: ") && reason.contains("8Mbit/s"), "{reason}");
        let slower = Flow::new(traffic, Some("1Mbit/s".parse().unwrap()), None);
        assert_eq!(slower.choose(streams), 1, "the slower of both counts");
        slower.note_batches(8);
        assert!(slower.chosen().unwrap().streams.is_some());
    }
}
