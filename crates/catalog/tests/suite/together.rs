//! A home and a site that keeps copies of its versions, with steps left undone and answers lost in between: nothing is
//! lost, nothing is left over, and both end with the same rows.

use std::collections::BTreeSet;

use percale_catalog::*;
use percale_core::ids::{SiteId, StoreId};
use percale_core::state::ReplicaState;
use percale_core::tree::RootHash;
use percale_core::{ByteCount, Position};
use percale_testkit::faults::{Schedule, rounds, seed};

use crate::pair::{HOME, OWN, Pair, channel, described, snapshot};
use crate::site::{Site, path, root, subject, user};

const PATHS: [&str; 6] = ["/lab/a", "/lab/b", "/lab/d/a", "/lab/d/b", "/lab/d/e/a", "/lab/f"];

fn publication(at: &str, size: u64, condition: Condition) -> Publication {
    Publication {
        caller: user("owner"),
        path: path(at),
        parents: true,
        condition,
        size: ByteCount(size),
        root: Some(root(size)),
        mtime: None,
        mode: None,
        digests: Vec::new(),
    }
}

/// The two sites, and the keys at which files of the space lie on the other site's store.
struct Run {
    pair: Pair,
    own: SiteId,
    random: Schedule,
    files: BTreeSet<String>,
    sizes: u64,
}

impl Run {
    async fn of(site: Site, seed: u64) -> Self {
        let pair = Pair::of(site).await;
        let own = pair.own.catalog.site().await.unwrap().id;
        pair.home.catalog.learn_stores(own, described(&pair.own.catalog).await).await.unwrap();
        Self { pair, own, random: Schedule::new(seed), files: BTreeSet::new(), sizes: 0 }
    }

    fn store(&self) -> StoreId {
        self.pair.own.store
    }

    fn at(&mut self) -> &'static str {
        let at: &&'static str = self.random.pick(&PATHS);
        at
    }

    /// Whether the process at the other site dies here, or an answer is lost.
    fn breaks_off(&mut self) -> bool {
        self.random.chance(0.2)
    }

    /// Takes a key on the other site's store.
    async fn reserve(
        &self,
        at: &str,
        version: Option<percale_core::ids::VersionId>,
        body: ArrivalBody,
    ) -> Arrival {
        let site = &self.pair.own;
        let wanted = NewArrival {
            lease: site.lease.id,
            fence: site.lease.fence,
            space: self.pair.space(),
            store: site.store,
            path: Some(path(at)),
            version,
            token: "token".into(),
            identity: None,
            body,
        };
        site.catalog.reserve_arrivals(vec![wanted]).await.pop().unwrap().unwrap()
    }

    async fn settle(&self, id: ArrivalId) {
        let settled = Settled { id, key: None, generation: None };
        self.pair.own.catalog.settle_arrivals(vec![settled]).await.pop().unwrap().unwrap();
    }

    /// Brings bytes to a key of the other site's store, as far as nothing breaks off.
    async fn arrive(&mut self, at: &str, version: Option<percale_core::ids::VersionId>, body: ArrivalBody) {
        let arrival = self.reserve(at, version, body).await;
        if self.breaks_off() {
            return;
        }
        assert!(self.files.insert(arrival.key.clone()), "the key {} was given out twice", arrival.key);
        if self.breaks_off() {
            return;
        }
        self.settle(arrival.id).await;
        if self.random.chance(0.7) {
            self.go_on().await;
        }
    }

    async fn write_there(&mut self) {
        let at = self.at();
        self.sizes += 1;
        let condition = if self.random.chance(0.3) { Condition::New } else { Condition::Any };
        let publication = publication(at, self.sizes, condition);
        self.arrive(at, None, ArrivalBody::Publication(Box::new(publication))).await;
    }

    async fn copy_there(&mut self) {
        let at = self.at();
        let site = &self.pair.own;
        let Ok(open) = site.catalog.open_object(&site.admin, &path(at), None).await else { return };
        let is_bad = |copy: &Replica| matches!(copy.state, ReplicaState::Suspect | ReplicaState::Lost);
        if open.replicas.iter().any(|copy| copy.store == site.store && !is_bad(copy)) {
            return;
        }
        let root = if self.random.chance(0.1) { RootHash::of(b"wrong") } else { open.root.unwrap() };
        self.arrive(at, Some(open.version), ArrivalBody::Copy { size: open.size, root }).await;
    }

    /// Adds a copy on the other site's store.
    async fn add_copy(&self, version: percale_core::ids::VersionId, key: &str) {
        let copy = NewCopy {
            id: ArrivalId::new(),
            space: self.pair.space(),
            version,
            store: self.store(),
            key: key.into(),
            generation: None,
            root: root(7),
        };
        let home = &self.pair.home;
        let added = home.catalog.add_copies(Some(self.own), &home.admin, vec![copy]).await.pop().unwrap();
        assert!(matches!(added.unwrap(), CopyAnswer::Added { .. }));
    }

    /// What whoever comes next does with all arrivals.
    async fn go_on(&mut self) {
        let own = self.pair.own.catalog.clone();
        for arrival in own.arrivals_of(self.pair.own.lease.id).await.unwrap() {
            if arrival.state == ArrivalState::Reserved {
                self.files.remove(&arrival.key);
                own.end_arrivals(vec![arrival.id], ArrivalEnd::Removed).await.pop().unwrap().unwrap();
            } else if arrival.told.is_none() {
                self.tell(&arrival).await;
            }
        }
    }

    async fn tell(&mut self, arrival: &Arrival) {
        let (home, own) = (self.pair.home.catalog.clone(), self.pair.own.catalog.clone());
        assert_eq!(arrival.home, Some(self.pair.home_id));
        let Arrival { id, space, store, key, generation, .. } = arrival.clone();
        let answer: Option<(percale_core::ids::VersionId, Position)> = match &arrival.body {
            ArrivalBody::Publication(publication) => {
                let publication = (**publication).clone();
                let item = RemotePublication { id, publication, store, key, generation };
                let mut done = home.publish_from(self.own, vec![item]).await.pop().unwrap().ok();
                if self.breaks_off() {
                    return;
                }
                if done.is_none() {
                    done = home.abandon_publications(self.own, vec![id]).await.unwrap().pop().unwrap();
                }
                done.map(|done| (done.version, done.position))
            }
            ArrivalBody::Copy { root, .. } => {
                let version = arrival.version.unwrap();
                let copy = NewCopy { id, space, version, store, key, generation, root: *root };
                let admin = &self.pair.home.admin;
                let added = home.add_copies(Some(self.own), admin, vec![copy]).await.pop().unwrap();
                if self.breaks_off() {
                    return;
                }
                match added {
                    // The record ends it.
                    Ok(CopyAnswer::Added { .. }) if self.random.chance(0.5) => return,
                    Ok(CopyAnswer::Added { position }) => Some((version, position)),
                    _ => None,
                }
            }
            body => panic!("{body:?}"),
        };
        match answer {
            Some((version, position)) => {
                let told = ToldArrival { id, version, position };
                own.note_told(vec![told]).await.pop().unwrap().unwrap();
            }
            None => own.end_arrivals(vec![id], ArrivalEnd::Garbage).await.pop().unwrap().unwrap(),
        }
    }

    async fn report_there(&mut self) {
        let site = &self.pair.own;
        let copies = site.catalog.replicas_on(site.store, None, 100).await.unwrap();
        if copies.is_empty() {
            return;
        }
        let copy = self.random.pick(&copies).clone();
        let states = [ReplicaState::Suspect, ReplicaState::Good, ReplicaState::Lost, ReplicaState::Offline];
        let report = ReplicaReport {
            space: copy.space,
            version: copy.replica.version,
            store: self.store(),
            key: self.random.chance(0.5).then(|| copy.replica.key.clone()),
            state: *self.random.pick(&states),
            generation: self.random.chance(0.3).then(|| "again".to_owned()),
            root: None,
            is_checked: true,
        };
        let site = &self.pair.own;
        let _may_be_refused = site.catalog.report_replicas(&site.admin, vec![report]).await;
    }

    /// Sends what waits for the home; tells whether there was anything.
    async fn deliver(&mut self) -> bool {
        let most = self.random.number(1..5);
        let rows = self.pair.own.catalog.outbox(usize::try_from(most).unwrap()).await.unwrap();
        let reports = rows.iter().map(|row| row.report.clone()).collect();
        let answers = self.pair.home.catalog.report_from(self.own, reports).await;
        if self.breaks_off() {
            return true;
        }
        let done = rows.iter().zip(answers);
        let done = done.map(|(row, answer)| OutboxDone { number: row.number, answer: answer.unwrap() });
        self.pair.own.catalog.outbox_done(done.collect()).await.unwrap();
        !rows.is_empty()
    }

    async fn evict(&mut self, is_there: bool) {
        let at = self.at();
        let home = &self.pair.home;
        let Ok(open) = home.catalog.open_object(&home.admin, &path(at), None).await else { return };
        let (site, store) = if is_there { (Some(self.own), self.store()) } else { (None, home.store) };
        let copy = CopyId { space: open.space, version: open.version, store };
        let answer = home.catalog.remove_copies(site, &home.admin, vec![copy]).await.pop().unwrap();
        let others_good = open.replicas.iter().any(|c| c.store != store && c.state == ReplicaState::Good);
        let is_copy = open.replicas.iter().any(|c| c.store == store);
        match answer {
            Ok(EvictAnswer::Removed { .. }) => assert!(is_copy && others_good),
            Ok(EvictAnswer::Gone) => assert!(!is_copy),
            Err(_) => assert!(is_copy && !others_good),
        }
    }

    async fn collect(&mut self) {
        self.pair.home.collect().await;
        for garbage in self.pair.own.collect().await {
            // A file may have been lost before its row was.
            self.files.remove(&garbage.key);
        }
    }

    async fn take_snapshot(&mut self) {
        let pieces = snapshot(&self.pair.home.catalog, self.pair.space()).await;
        let lines = channel(pieces);
        let (space, home) = (self.pair.space(), self.pair.home_id);
        self.pair.own.catalog.follow_snapshot(space, home, HOME, OWN, lines).await.unwrap();
    }

    async fn step(&mut self) {
        match self.random.number(0..14) {
            0..3 => self.write_there().await,
            3 => self.copy_there().await,
            4 => {
                let at = self.at();
                self.sizes += 1;
                drop(self.pair.put_on(at, self.pair.home.store, self.sizes).await);
            }
            5 => {
                let at = self.at();
                let _may_be_missing = self.pair.home.remove(at, false).await;
            }
            6 => {
                let (from, to) = (self.at(), self.at());
                let _may_be_missing = self.pair.home.rename(from, to, true).await;
            }
            7 => self.report_there().await,
            8 => drop(self.deliver().await),
            9 => {
                let is_there = self.random.chance(0.5);
                self.evict(is_there).await;
            }
            10 => {
                let most = self.random.number(1..6);
                let records =
                    self.pair.records(self.pair.stands().await, usize::try_from(most).unwrap()).await;
                if !records.is_empty() {
                    self.pair.follow(records).await.unwrap();
                }
            }
            11 if self.random.chance(0.3) => self.take_snapshot().await,
            12 => self.collect().await,
            13 => drop(self.pair.own.catalog.finish_arrived().await.unwrap()),
            _ => self.go_on().await,
        }
    }

    /// Goes on until nothing is left to do, and compares.
    async fn end(&mut self) {
        let own = self.pair.own.catalog.clone();
        loop {
            self.go_on().await;
            let is_delivered = !self.deliver().await;
            self.pair.catch_up(100).await;
            own.finish_arrived().await.unwrap();
            let left = own.arrivals_of(self.pair.own.lease.id).await.unwrap();
            if is_delivered && left.is_empty() {
                break;
            }
        }
        self.collect().await;
        self.pair.assert_same().await;
        let copies = own.replicas_on(self.store(), None, 1000).await.unwrap();
        let keys: BTreeSet<String> = copies.into_iter().map(|copy| copy.replica.key).collect();
        assert_eq!(keys, self.files, "each file has a name, and each name a file");
    }
}

async fn nothing_is_lost_and_nothing_left_over(site: Site) {
    let mut run = Run::of(site, seed("nothing_is_lost_and_nothing_left_over")).await;
    for _ in 0..rounds("PERCALE_TOGETHER_ROUNDS", 4) {
        for _ in 0..100 {
            run.step().await;
        }
        run.end().await;
    }
}

/// Two sites of which the other has a copy of a version of the home's, at a key.
async fn with_a_copy(site: Site, key: &str) -> (Run, percale_core::ids::VersionId) {
    let run = Run::of(site, 1).await;
    let (home, lab) = (&run.pair.home, path("/lab"));
    let write = percale_core::access::Permission::Write;
    home.catalog.set_grant(&home.admin, &lab, subject("owner"), write).await.unwrap();
    let version = home.put("/lab/x", 7).await.version;
    run.pair.catch_up(10).await;
    run.add_copy(version, key).await;
    run.pair.catch_up(10).await;
    (run, version)
}

/// What has a name is no arrival any more, whether or not the answer was noted; one of whose version nobody knows here waits for
/// the answer.
async fn the_record_of_a_copy_ends_its_arrival(site: Site) {
    let (run, _) = with_a_copy(site, "lab/x").await;
    let (home, own) = (run.pair.home.catalog.clone(), run.pair.own.catalog.clone());
    let version = run.pair.home.put("/lab/y", 7).await.version;
    run.pair.catch_up(10).await;
    let copied = ArrivalBody::Copy { size: ByteCount(7), root: root(7) };
    let copy = run.reserve("/lab/y", Some(version), copied).await;
    let new = publication("/lab/z", 8, Condition::New);
    let made = run.reserve("/lab/z", None, ArrivalBody::Publication(Box::new(new.clone()))).await;
    for arrival in [&copy, &made] {
        run.settle(arrival.id).await;
    }
    let Arrival { id, space, store, key, generation, .. } = copy.clone();
    let copy = NewCopy { id, space, version, store, key, generation, root: root(7) };
    let added = home.add_copies(Some(run.own), &run.pair.home.admin, vec![copy]).await.pop().unwrap();
    let Ok(CopyAnswer::Added { position }) = added else { panic!("{added:?}") };
    let Arrival { id: made, store, key, generation, .. } = made;
    let item = RemotePublication { id: made, publication: new, store, key, generation };
    let publish = async || home.publish_from(run.own, vec![item.clone()]).await.pop().unwrap().unwrap();
    let published = publish().await;

    run.pair.catch_up(10).await;
    let left =
        async || own.written_arrivals(10, None).await.unwrap().iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!(left().await, [made], "the copy has a name");
    assert_eq!(own.finish_arrived().await.unwrap(), 0, "the home is asked what became of it first");
    let note = async |id, version, position| {
        own.note_told(vec![ToldArrival { id, version, position }]).await.pop().unwrap()
    };
    note(id, version, position).await.unwrap();
    assert_eq!(publish().await, published);
    note(made, published.version, published.position).await.unwrap();
    assert_eq!(own.finish_arrived().await.unwrap(), 1);
    assert_eq!(left().await, []);
    assert!(own.garbage(run.store(), 10).await.unwrap().is_empty());
    run.pair.assert_same().await;
}

/// What the home knows of a copy while a report about it is on its way is not forgotten.
async fn a_record_that_was_passed_over_counts_after_the_answer(site: Site) {
    let (mut run, version) = with_a_copy(site, "lab/x").await;
    let report = |state| ReplicaReport {
        space: run.pair.space(),
        version,
        store: run.store(),
        key: None,
        state,
        generation: None,
        root: None,
        is_checked: true,
    };
    let own = run.pair.own.catalog.clone();
    let say = async |state| {
        own.report_replicas(&run.pair.own.admin, vec![report(state)]).await.pop().unwrap().unwrap()
    };
    for with_snapshot in [false, true] {
        say(ReplicaState::Suspect).await;
        let row = own.outbox(1).await.unwrap().remove(0);
        let answer =
            run.pair.home.catalog.report_from(run.own, vec![row.report]).await.pop().unwrap().unwrap();
        // Something else becomes of the copy at the home, and is followed before the answer is heard.
        for state in [ReplicaState::Good, ReplicaState::Offline] {
            run.pair.home.catalog.report_from(run.own, vec![report(state)]).await.pop().unwrap().unwrap();
        }
        if with_snapshot {
            run.pair.take_snapshot().await.unwrap();
        } else {
            run.pair.catch_up(1).await;
        }
        let open = own.open_object(&run.pair.own.admin, &path("/lab/x"), None).await.unwrap();
        let state = open.replicas.iter().find(|copy| copy.store == run.store()).unwrap().state;
        assert_eq!(state, ReplicaState::Suspect, "until the home has answered");
        own.outbox_done(vec![OutboxDone { number: row.number, answer }]).await.unwrap();
        run.pair.assert_same().await;
        run.pair
            .home
            .catalog
            .report_from(run.own, vec![report(ReplicaState::Good)])
            .await
            .pop()
            .unwrap()
            .unwrap();
        run.pair.catch_up(10).await;
    }
    run.files.insert("lab/x".into());
    run.end().await;
}

/// A report about a copy says nothing of the one that took its place meanwhile.
async fn a_report_that_a_new_copy_overtook_is_of_no_effect(site: Site) {
    let (mut run, version) = with_a_copy(site, "lab/old").await;
    let own = run.pair.own.catalog.clone();
    let say = async |state| {
        let (space, store) = (run.pair.space(), run.store());
        let report = ReplicaReport {
            space,
            version,
            store,
            key: None,
            state,
            generation: None,
            root: None,
            is_checked: true,
        };
        own.report_replicas(&run.pair.own.admin, vec![report]).await.pop().unwrap().unwrap();
        own.outbox(10).await.unwrap().pop().unwrap()
    };
    let (mut old, mut answers) = ("lab/old", Vec::new());
    for (new, is_followed_first) in [("lab/new", false), ("lab/newer", true)] {
        let suspect = say(ReplicaState::Suspect).await;
        let noted = run.pair.home.catalog.report_from(run.own, vec![suspect.report]).await.pop().unwrap();
        own.outbox_done(vec![OutboxDone { number: suspect.number, answer: noted.unwrap() }]).await.unwrap();
        let lost = say(ReplicaState::Lost).await;
        assert_eq!(lost.report.key.as_deref(), Some(old));
        run.add_copy(version, new).await;
        let told = run.pair.home.catalog.report_from(run.own, vec![lost.report]).await.pop().unwrap();
        answers.push(told.as_ref().unwrap().clone());
        if is_followed_first {
            run.pair.catch_up(10).await;
            assert_eq!(own.outbox(10).await.unwrap(), [], "nobody has to hear of it any more");
        }
        own.outbox_done(vec![OutboxDone { number: lost.number, answer: told.unwrap() }]).await.unwrap();
        run.pair.catch_up(10).await;
        run.pair.assert_same().await;
        let open = run.pair.home.catalog.open_object(&run.pair.home.admin, &path("/lab/x"), None).await;
        let copy = open.unwrap().replicas.into_iter().find(|copy| copy.store == run.store()).unwrap();
        assert_eq!((copy.key.as_str(), copy.state), (new, ReplicaState::Good));
        old = new;
    }
    assert_eq!(answers, [ReportAnswer::Gone, ReportAnswer::Gone]);
    run.files.insert("lab/newer".into());
    run.end().await;
}

on_both!(
    nothing_is_lost_and_nothing_left_over,
    the_record_of_a_copy_ends_its_arrival,
    a_record_that_was_passed_over_counts_after_the_answer,
    a_report_that_a_new_copy_overtook_is_of_no_effect,
);
