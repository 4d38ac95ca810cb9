//! The site and its spaces.

use std::collections::HashMap;

use percale_core::access::{Caller, Denied, Permission, Subject};
use percale_core::ids::{EntryId, SiteId, SpaceId};
use percale_core::path::SpaceName;
use percale_core::{ByteCount, ObjectPath, Position};

use crate::access::{enter, resolve};
use crate::batch::{Batch, Mark, PathLock, Written, no_space, raced};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{AttributeSource, NewSpace, Site, Space, SpaceChange, SpaceScope, SpaceState};
use crate::record::{AttributesItem, GrantItem, Items, SetAttribute, SpaceBody, kind};
use crate::rows::entry::{self, EntryRow};
use crate::rows::grant::{self, GrantRow};
use crate::rows::publish::actor;
use crate::rows::{attribute, extraction, replica, site, tally, used, word};

/// The site.
impl Catalog {
    /// Gives the site its id and name; the same again if it has that name already.
    ///
    /// # Errors
    /// `AlreadyExists` if it has another name.
    pub async fn init_site(&self, name: &str) -> Result<Site> {
        self.change(InitSite(name.to_owned())).await
    }

    /// Returns the site.
    ///
    /// # Errors
    /// `NotFound` before [`Catalog::init_site`].
    pub async fn site(&self) -> Result<Site> {
        let missing = || Error::new(ErrorKind::NotFound, "the catalog does not belong to a site yet");
        self.ask(GetSite).await?.ok_or_else(missing)
    }
}

/// Spaces.
impl Catalog {
    /// Makes a space; its owner gets `manage`, and `anyone` gets `read` if it is public. For administrators.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` if there is no such store, `Denied`.
    pub async fn create_space(&self, caller: &Caller, new: NewSpace) -> Result<Space> {
        self.change(CreateSpace { caller: caller.clone(), new }).await
    }

    /// Returns the spaces that the caller may know of, by name: those with a grant on the root, and for somebody who
    /// signed in those with the scope `members`.
    pub async fn spaces(&self, caller: &Caller) -> Result<Vec<Space>> {
        self.ask(ListSpaces(caller.clone())).await
    }

    /// Returns a space that the caller may know of.
    pub async fn space(&self, caller: &Caller, name: &SpaceName) -> Result<Space> {
        self.ask(GetSpace { caller: caller.clone(), path: ObjectPath::of_space(name) }).await
    }

    /// Changes a space. Needs `manage` on its root; another default store or quota needs an administrator.
    pub async fn update_space(
        &self,
        caller: &Caller,
        name: &SpaceName,
        change: SpaceChange,
    ) -> Result<Space> {
        self.change(UpdateSpace { caller: caller.clone(), name: name.clone(), change }).await
    }

    /// Returns how many bytes the objects of spaces have together, in their current versions. It is kept by the database, so that it is as
    /// fast for ten million objects as for one. A space that there is not is passed over.
    pub async fn used(&self, spaces: Vec<SpaceId>) -> Result<HashMap<SpaceId, ByteCount>> {
        self.ask(GetUsed(spaces)).await
    }

    /// Removes an empty space. Its journal stays readable for administrators by its id. For administrators.
    ///
    /// # Errors
    /// `NotEmpty` while it has entries, or bytes that the collector has not deleted yet.
    pub async fn remove_space(&self, caller: &Caller, name: &SpaceName) -> Result<()> {
        self.change(RemoveSpace { caller: caller.clone(), name: name.clone() }).await
    }

    /// Returns the end of a space's journal.
    pub async fn position(&self, space: SpaceId) -> Result<Position> {
        self.ask(GetPosition(space)).await
    }
}

struct InitSite(String);

impl Change for InitSite {
    type Draft = Site;
    type Out = Site;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Site> {
        let Self(name) = self;
        if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
            return Err(Error::invalid("the name of a site has 1 to 63 bytes and no control characters"));
        }
        match site::site(batch.tx).await? {
            Some(site) if site.name == *name => Ok(site),
            Some(site) => {
                let message = format!("cannot name the site '{name}': it is '{}'", site.name);
                Err(Error::new(ErrorKind::AlreadyExists { version: None }, message))
            }
            None => {
                let site = Site { id: SiteId::new(), name: name.clone(), created: batch.now() };
                match site::set_site(batch.tx, &site).await? {
                    1 => Ok(site),
                    _ => Err(raced("the site got its name from somebody else")),
                }
            }
        }
    }

    fn finish(self, site: Site, _written: &Written) -> Site {
        site
    }
}

struct GetSite;

impl Query for GetSite {
    type Out = Option<Site>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Option<Site>> {
        site::site(tx).await
    }
}

/// Checks that an administrator asks.
fn require_admin(caller: &Caller, path: ObjectPath) -> Result<()> {
    if caller.is_admin() {
        return Ok(());
    }
    let permission = Permission::Manage;
    Err(match caller.user {
        None => Denied::NotSignedIn { permission, path },
        Some(_) => Denied::Scope { permission, path },
    }
    .into())
}

/// Checks that a limit is a number that databases have.
fn check_quota(quota: Option<ByteCount>) -> Result<()> {
    match quota {
        Some(quota) if i64::try_from(quota.0).is_err() => {
            Err(Error::invalid(format!("a quota of {quota} is more than 2^63 - 1 bytes: leave it out")))
        }
        _ => Ok(()),
    }
}

/// A space as it is after a change whose record has no number yet.
pub(crate) struct Draft {
    space: Space,
    mark: Mark,
}

fn finish(draft: Draft, written: &Written) -> Space {
    Space { position: written.position(draft.mark), ..draft.space }
}

/// Gives or takes back a permission on the root of a space.
async fn set_root_grant<T: Tx>(
    batch: &mut Batch<'_, T>,
    sp: i64,
    subject: &Subject,
    permission: Option<Permission>,
) -> Result<GrantItem> {
    let (entry, subject) = (EntryId::ROOT, subject.clone());
    match permission {
        Some(permission) => {
            let grant = GrantRow { sp, entry: entry.0, subject: subject.clone(), permission };
            grant::set(batch.tx, &grant).await?;
        }
        None => drop(grant::remove(batch.tx, sp, entry.0, &subject).await?),
    }
    Ok(GrantItem { entry, subject, permission })
}

struct CreateSpace {
    caller: Caller,
    new: NewSpace,
}

impl Change for CreateSpace {
    type Draft = Draft;
    type Out = Space;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, new } = self;
        require_admin(caller, ObjectPath::of_space(&new.name))?;
        if batch.space_named(new.name.as_str()).await?.is_some() {
            let message = format!("there is a space '{}' already", new.name);
            return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
        }
        check_quota(new.quota)?;
        if let Some(store) = new.store {
            batch.store(store).await?;
        }
        let (id, now) = (SpaceId::new(), batch.now());
        let space = Space {
            id,
            name: new.name.clone(),
            owner: new.owner.clone(),
            scope: new.scope,
            store: new.store,
            state: SpaceState::Active,
            extraction: new.extraction,
            quota: new.quota,
            created: now,
            home: None,
            behind: None,
            position: Position { space: id, term: 1, seq: 0 },
        };
        let sp = site::insert_space(batch.tx, &space).await?;
        entry::insert(batch.tx, &[&EntryRow::collection(sp, EntryId::ROOT.0, 0, "", now)]).await?;
        let home = site::site(batch.tx).await?.map(|site| site.id);
        batch.record(sp, &actor(caller), kind::SPACE_CREATED, &SpaceBody::new(&space, home))?;
        let mut items = vec![set_root_grant(batch, sp, &space.owner, Some(Permission::Manage)).await?];
        if space.scope == SpaceScope::Public && space.owner != Subject::Anyone {
            items.push(set_root_grant(batch, sp, &Subject::Anyone, Some(Permission::Read)).await?);
        }
        for (subject, permission) in &new.members {
            if *subject != space.owner {
                items.push(set_root_grant(batch, sp, subject, Some(*permission)).await?);
            }
        }
        let mut mark = batch.record(sp, &actor(caller), kind::GRANTS_CHANGED, &Items { items })?;
        if !new.rules.is_empty() {
            let set = new.rules.iter();
            let set = set.map(|(name, values)| SetAttribute { name: name.clone(), values: values.clone() });
            let (entry, source, set) = (EntryId::ROOT, AttributeSource::Person, set.collect());
            let items = vec![AttributesItem { entry, source, version: None, set }];
            crate::attribute::write(batch.tx, sp, &items, |_, _| false).await?;
            mark = batch.record(sp, &actor(caller), kind::ATTRIBUTES_CHANGED, &Items { items })?;
        }
        Ok(Draft { space, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Space {
        finish(draft, written)
    }
}

struct UpdateSpace {
    caller: Caller,
    name: SpaceName,
    change: SpaceChange,
}

impl Change for UpdateSpace {
    type Draft = Draft;
    type Out = Space;
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Draft> {
        let Self { caller, name, change } = self;
        let path = ObjectPath::of_space(name);
        let resolved = match resolve(batch.tx, &path).await? {
            None => return Err(no_space(caller, Permission::Manage, &path)),
            Some(resolved) => resolved,
        };
        resolved.decide(caller, Permission::Manage, &path)?;
        if change.store.is_some() || change.quota.is_some() {
            require_admin(caller, path)?;
        }
        let sp = resolved.space.sp;
        site::lock_space(batch.tx, sp).await?;
        let row = batch.space(sp).await?;
        if row.is_removed {
            return Err(raced("the space was removed"));
        }
        row.require_home()?;
        let before = row.space.clone();
        let mut space = before.clone();
        if let Some(owner) = &change.owner {
            space.owner = owner.clone();
        }
        space.scope = change.scope.unwrap_or(space.scope);
        space.state = change.state.unwrap_or(space.state);
        space.extraction = change.extraction.unwrap_or(space.extraction);
        space.quota = change.quota.unwrap_or(space.quota);
        check_quota(space.quota)?;
        if let Some(store) = change.store {
            if let Some(store) = store {
                batch.store(store).await?;
            }
            space.store = store;
        }
        if space == before {
            return Ok(Draft { space, mark: batch.no_record(sp) });
        }
        site::update_space(batch.tx, sp, &space).await?;
        let home = site::site(batch.tx).await?.map(|site| site.id);
        let mut mark =
            batch.record(sp, &actor(caller), kind::SPACE_CHANGED, &SpaceBody::new(&space, home))?;
        let mut items = Vec::new();
        if space.owner != before.owner {
            items.push(set_root_grant(batch, sp, &space.owner, Some(Permission::Manage)).await?);
        }
        match (before.scope == SpaceScope::Public, space.scope == SpaceScope::Public) {
            (false, true) => {
                items.push(set_root_grant(batch, sp, &Subject::Anyone, Some(Permission::Read)).await?);
            }
            (true, false) => items.push(set_root_grant(batch, sp, &Subject::Anyone, None).await?),
            _ => {}
        }
        if !items.is_empty() {
            mark = batch.record(sp, &actor(caller), kind::GRANTS_CHANGED, &Items { items })?;
        }
        Ok(Draft { space, mark })
    }

    fn finish(self, draft: Draft, written: &Written) -> Space {
        finish(draft, written)
    }
}

struct RemoveSpace {
    caller: Caller,
    name: SpaceName,
}

impl Change for RemoveSpace {
    type Draft = ();
    type Out = ();
    const ALONE: bool = true;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let Self { caller, name } = self;
        let path = ObjectPath::of_space(name);
        require_admin(caller, path.clone())?;
        let Some(walk) = batch.walk(&path, PathLock::CHANGE).await? else {
            return Err(no_space(caller, Permission::Manage, &path));
        };
        walk.space.require_home()?;
        let (sp, id) = (walk.space.sp, walk.space.space.id);
        // Whoever is adding something either has committed, and is seen, or meets the removed space at its journal.
        site::lock_space(batch.tx, sp).await?;
        if entry::has_children(batch.tx, sp, EntryId::ROOT.0).await? {
            return Err(Error::new(ErrorKind::NotEmpty, format!("the space '{name}' is not empty")));
        }
        if replica::space_has_bytes(batch.tx, sp).await? {
            let message = format!("the bytes of what was in the space '{name}' are not all deleted yet");
            return Err(Error::new(ErrorKind::NotEmpty, message));
        }
        grant::remove_of_entries(batch.tx, vec![(sp, EntryId::ROOT.0)]).await?;
        entry::delete_all(batch.tx, sp).await?;
        attribute::remove_of_space(batch.tx, sp).await?;
        extraction::remove_of_space(batch.tx, sp).await?;
        tally::remove_of_space(batch.tx, sp).await?;
        used::remove_of_space(batch.tx, sp).await?;
        word::remove_of_space(batch.tx, sp).await?;
        site::remove_space(batch.tx, sp, id).await?;
        batch.record(sp, &actor(caller), kind::SPACE_REMOVED, &serde_json::json!({}))?;
        Ok(())
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct ListSpaces(Caller);

impl Query for ListSpaces {
    type Out = Vec<Space>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<Space>> {
        let Self(caller) = self;
        let mut granted: HashMap<i64, Vec<(Subject, Permission)>> = HashMap::new();
        if !caller.is_admin() {
            for grant in grant::on_roots(tx).await? {
                granted.entry(grant.sp).or_default().push((grant.subject, grant.permission));
            }
        }
        let mut spaces = Vec::new();
        for row in site::spaces(tx).await? {
            let path = ObjectPath::of_space(&row.space.name);
            let granted = granted.get(&row.sp).map(Vec::as_slice).unwrap_or_default();
            let granted = granted.iter().map(|(subject, permission)| (subject, *permission));
            let may_read = percale_core::access::decide(caller, Permission::Read, &path, granted).is_ok();
            if may_read || is_known_member(caller, &row.space) {
                spaces.push(row.space);
            }
        }
        Ok(spaces)
    }
}

/// A space for members is known to everybody who signed in.
fn is_known_member(caller: &Caller, space: &Space) -> bool {
    space.scope == SpaceScope::Members && caller.user.is_some()
}

struct GetSpace {
    caller: Caller,
    path: ObjectPath,
}

impl Query for GetSpace {
    type Out = Space;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Space> {
        let Self { caller, path } = self;
        match enter(tx, caller, Permission::Read, path).await {
            Ok(resolved) => Ok(resolved.space.space),
            Err(error) => match resolve(tx, path).await? {
                Some(resolved) if is_known_member(caller, &resolved.space.space) => Ok(resolved.space.space),
                _ => Err(error),
            },
        }
    }
}

struct GetUsed(Vec<SpaceId>);

impl Query for GetUsed {
    type Out = HashMap<SpaceId, ByteCount>;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Self::Out> {
        used::of_spaces(tx, self.0.clone()).await
    }
}

struct GetPosition(SpaceId);

impl Query for GetPosition {
    type Out = Position;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Position> {
        let found = site::space_by_id(tx, self.0).await?;
        let missing = || Error::new(ErrorKind::SpaceNotFound, format!("there is no space {}", self.0));
        found.map(|row| row.space.position).ok_or_else(missing)
    }
}
