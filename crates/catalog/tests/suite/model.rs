//! Random sequences of operations against a simple model: the outcomes and the state must be the same, and the journal
//! must lead to that state.

use std::collections::BTreeMap;

use percale_catalog::*;
use percale_core::ids::VersionId;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::journal::Follower;
use crate::site::{Site, path};

/// Paths of a small world, so that operations meet.
fn a_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
        .prop_map(|names| format!("/lab/{}", names.join("/")))
}

#[derive(Debug, Clone)]
enum Op {
    Make(String, bool),
    Put(String, Want),
    /// Several in one call of each step.
    PutMany(Vec<String>),
    /// Prepared before the next operation, committed after it.
    PutAround(String, Box<Op>),
    Rename(String, String, bool),
    Remove(String, bool),
    RemoveSome(String, usize),
    Collect,
}

#[derive(Debug, Clone, Copy)]
enum Want {
    New,
    Existing,
    Any,
    Current,
}

fn an_op() -> impl Strategy<Value = Op> {
    let want = prop::sample::select(vec![Want::New, Want::Existing, Want::Any, Want::Current]);
    let simple = prop_oneof![
        2 => (a_path(), any::<bool>()).prop_map(|(at, parents)| Op::Make(at, parents)),
        4 => (a_path(), want).prop_map(|(at, want)| Op::Put(at, want)),
        1 => prop::collection::vec(a_path(), 1..6).prop_map(Op::PutMany),
        4 => (a_path(), a_path(), any::<bool>()).prop_map(|(from, to, over)| Op::Rename(from, to, over)),
        2 => (a_path(), any::<bool>()).prop_map(|(at, recursive)| Op::Remove(at, recursive)),
        1 => (a_path(), 1usize..4).prop_map(|(at, max)| Op::RemoveSome(at, max)),
        1 => Just(Op::Collect),
    ];
    simple.clone().prop_flat_map(move |op| {
        prop_oneof![5 => Just(op.clone()), 1 => a_path().prop_map(move |at| Op::PutAround(at, Box::new(op.clone())))]
    })
}

/// The model: each path with its version, or none for a collection.
#[derive(Debug, Default)]
struct Model {
    entries: BTreeMap<String, Option<VersionId>>,
}

/// What became of an operation, as far as the model predicts it.
type Outcome = std::result::Result<(), &'static str>;

fn word(outcome: Result<()>) -> Outcome {
    outcome.map_err(|error| match error.kind() {
        ErrorKind::NotFound => "not found",
        ErrorKind::AlreadyExists { .. } => "exists",
        ErrorKind::NotEmpty => "not empty",
        ErrorKind::IsCollection => "is a collection",
        ErrorKind::NotACollection => "is not a collection",
        ErrorKind::Conflict { .. } => "conflict",
        ErrorKind::PreconditionFailed { .. } => "precondition",
        ErrorKind::InvalidRequest => "invalid",
        other => panic!("an unexpected error: {other:?} {error}"),
    })
}

fn parent(at: &str) -> &str {
    at.rsplit_once('/').unwrap().0
}

impl Model {
    fn get(&self, at: &str) -> Option<Option<VersionId>> {
        if at == "/lab" { Some(None) } else { self.entries.get(at).copied() }
    }

    /// The collections above a path: an error if one is an object, and whether all are there.
    fn above(&self, at: &str) -> std::result::Result<bool, &'static str> {
        let mut all = true;
        let mut above = parent(at);
        while above != "/lab" {
            match self.get(above) {
                Some(Some(_)) => return Err("is not a collection"),
                Some(None) => {}
                None => all = false,
            }
            above = parent(above);
        }
        Ok(all)
    }

    fn require_parent(&self, at: &str) -> Outcome {
        if self.above(at)? { Ok(()) } else { Err("not found") }
    }

    fn make_parents(&mut self, at: &str) {
        let mut above = parent(at);
        while above != "/lab" {
            self.entries.insert(above.into(), None);
            above = parent(above);
        }
    }

    fn below(&self, at: &str) -> Vec<String> {
        let prefix = format!("{at}/");
        self.entries.keys().filter(|key| key.starts_with(&prefix)).cloned().collect()
    }

    fn make(&mut self, at: &str, parents: bool) -> Outcome {
        match self.get(at) {
            Some(None) if parents => return Ok(()),
            Some(_) => return Err("exists"),
            None => {}
        }
        if parents {
            self.above(at)?;
            self.make_parents(at);
        } else {
            self.require_parent(at)?;
        }
        self.entries.insert(at.into(), None);
        Ok(())
    }

    fn may_put(&self, at: &str, want: Want) -> Outcome {
        self.above(at)?;
        match (self.get(at), want) {
            (Some(None), _) => Err("is a collection"),
            (Some(Some(_)), Want::New) => Err("exists"),
            (None, Want::Existing | Want::Current) => Err("precondition"),
            _ => Ok(()),
        }
    }

    fn rename(&mut self, from: &str, to: &str, overwrite: bool) -> Outcome {
        self.above(from)?;
        let Some(entry) = self.get(from) else { return Err("not found") };
        if from == to {
            return Ok(());
        }
        if to.starts_with(&format!("{from}/")) {
            // Below an object, the path goes through the object; the catalog sees first that it would be a circle.
            return Err("invalid");
        }
        self.above(to)?;
        match self.get(to) {
            None => self.require_parent(to)?,
            Some(_) if !overwrite => return Err("exists"),
            Some(there) => match (entry, there) {
                (Some(_), None) => return Err("is a collection"),
                (None, Some(_)) => return Err("is not a collection"),
                (None, None) if !self.below(to).is_empty() => return Err("not empty"),
                _ => {}
            },
        }
        self.entries.remove(to);
        for old in self.below(from).into_iter().chain([from.to_owned()]) {
            let entry = self.entries.remove(&old).unwrap();
            self.entries.insert(format!("{to}{}", &old[from.len()..]), entry);
        }
        Ok(())
    }

    fn remove(&mut self, at: &str, recursive: bool) -> Outcome {
        self.above(at)?;
        if self.get(at).is_none() {
            return Err("not found");
        }
        let below = self.below(at);
        if !recursive && !below.is_empty() {
            return Err("not empty");
        }
        for key in below.iter().map(String::as_str).chain([at]) {
            self.entries.remove(key);
        }
        Ok(())
    }
}

struct Run {
    site: Site,
    model: Model,
}

impl Run {
    async fn prepare(&mut self, at: &str, want: Want) -> Option<Intent> {
        let condition = match want {
            Want::New => Condition::New,
            Want::Existing => Condition::Existing,
            Want::Any => Condition::Any,
            Want::Current => Condition::Match(self.model.get(at).flatten().unwrap_or(VersionId(0))),
        };
        let expected = self.model.may_put(at, want);
        let prepared = self.site.prepare(self.site.wanted(at, condition)).await;
        assert_eq!(
            word(prepared.as_ref().map(drop).map_err(Clone::clone)),
            expected,
            "prepare {at} {want:?}"
        );
        if prepared.is_ok() {
            self.model.make_parents(at);
        }
        prepared.ok()
    }

    async fn commit(&mut self, intent: Intent) {
        let committed = self.site.commit(&intent, intent.version.0).await;
        match committed {
            Ok(done) => {
                let before = self.model.get(done.path.as_str()).flatten();
                assert_eq!(before, intent.base, "commit {}", done.path);
                assert_eq!(done.created, before.is_none());
                self.model.entries.insert(done.path.to_string(), Some(done.version));
            }
            // Whether another operation between prepare and commit gets in the way is for the state to show.
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::Conflict { .. } | ErrorKind::NotFound),
                    "{error:?}"
                );
                self.site.catalog.abandon(vec![intent.id]).await.unwrap();
            }
        }
    }

    async fn step(&mut self, op: &Op) {
        let (catalog, admin) = (self.site.catalog.clone(), self.site.admin.clone());
        match op {
            Op::Make(at, parents) => {
                let made = catalog.create_collection(&admin, &path(at), *parents).await;
                assert_eq!(word(made.map(drop)), self.model.make(at, *parents), "{op:?}");
            }
            Op::Put(at, want) => {
                if let Some(intent) = self.prepare(at, *want).await {
                    let version = intent.version;
                    self.commit(intent).await;
                    assert_eq!(self.model.get(at), Some(Some(version)), "{op:?}");
                }
            }
            Op::PutMany(paths) => {
                let wanted = paths.iter().map(|at| self.site.wanted(at, Condition::Any)).collect();
                let mut commits = Vec::new();
                for (at, intent) in paths.iter().zip(catalog.prepare(wanted).await) {
                    assert_eq!(
                        word(intent.as_ref().map(drop).map_err(Clone::clone)),
                        self.model.may_put(at, Want::Any)
                    );
                    if let Ok(intent) = intent {
                        self.model.make_parents(at);
                        commits.push((at, intent));
                    }
                }
                let wanted = commits
                    .iter()
                    .map(|(_, intent)| Commit::new(intent.id, percale_core::ByteCount(1), None));
                let done = catalog.commit(wanted.collect()).await;
                for ((at, intent), done) in commits.iter().zip(done) {
                    let expected = match self.model.get(at) {
                        Some(None) => Err("conflict"),
                        now if now.flatten() == intent.base => Ok(()),
                        _ => Err("conflict"),
                    };
                    assert_eq!(word(done.as_ref().map(drop).map_err(Clone::clone)), expected, "{op:?} {at}");
                    match done {
                        Ok(done) => drop(self.model.entries.insert((*at).clone(), Some(done.version))),
                        Err(_) => catalog.abandon(vec![intent.id]).await.unwrap(),
                    }
                }
            }
            Op::PutAround(at, inner) => {
                let intent = self.prepare(at, Want::Any).await;
                Box::pin(self.step(inner)).await;
                if let Some(intent) = intent {
                    self.commit(intent).await;
                }
            }
            Op::Rename(from, to, overwrite) => {
                let renamed = self.site.rename(from, to, *overwrite).await;
                assert_eq!(word(renamed.map(drop)), self.model.rename(from, to, *overwrite), "{op:?}");
            }
            Op::Remove(at, recursive) => {
                let removed = self.site.remove(at, *recursive).await;
                assert_eq!(word(removed.map(drop)), self.model.remove(at, *recursive), "{op:?}");
            }
            Op::RemoveSome(at, max) => {
                let expected = self.model.remove(at, true);
                let outcome = loop {
                    match catalog.remove_some(&admin, &path(at), *max).await {
                        Ok(removed) if removed.is_done => break Ok(()),
                        Ok(_) => {}
                        Err(error) => break Err(error),
                    }
                };
                assert_eq!(word(outcome), expected, "{op:?}");
            }
            Op::Collect => drop(self.site.collect().await),
        }
    }

    async fn check(&self) {
        let expected: Vec<String> = self
            .model
            .entries
            .iter()
            .map(|(at, version)| if version.is_some() { at.clone() } else { format!("{at}/") })
            .collect();
        let mut found = self.site.tree("/lab").await;
        found.sort_by(|a, b| a.trim_end_matches('/').cmp(b.trim_end_matches('/')));
        assert_eq!(found, expected);
        for (at, version) in &self.model.entries {
            let entry = self.site.stat(at).await.unwrap();
            assert_eq!(entry.content.map(|content| content.version), *version, "{at}");
        }
        Follower::of(&self.site).await.assert_same(&self.site).await;
        self.site.assert_sound().await;
    }
}

fn run_all(cases: u32, open: impl AsyncFn() -> Option<Site>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases, max_shrink_iters: 200, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(an_op(), 1..40), |ops| {
        runtime.block_on(async {
            let Some(site) = open().await else { return };
            let mut run = Run { site, model: Model::default() };
            for op in &ops {
                run.step(op).await;
            }
            run.check().await;
            run.site.catalog.close().await;
        });
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn random_operations_agree_with_the_model_on_sqlite() {
    let cases = percale_testkit::faults::rounds("PERCALE_MODEL_CASES", 120);
    run_all(cases, async || Some(Site::sqlite().await));
}

#[test]
fn random_operations_agree_with_the_model_on_postgres() {
    let cases = percale_testkit::faults::rounds("PERCALE_MODEL_CASES", 12);
    run_all(cases, async || Site::postgres().await);
}
