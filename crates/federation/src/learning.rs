//! What other sites say of members and their keys (`docs/design/trust.md`, "Joining, keys, removal").
//!
//! A line of the roster changes no key. What changes it is a step that the key which is known here has signed, whoever
//! brings it, or an administrator of this site who has compared the new one.

use std::sync::Arc;

use percale_api::peer;
use percale_catalog::PeerState;
use percale_core::ids::SiteId;
use percale_core::{ErrorCode, Timestamp};
use percale_trust::SitePublicKey;
use percale_trust::tls::is_unexpected_key;

use crate::error::{Error, Result};
use crate::fabric::{Acting, Fabric, Route};
use crate::roster::{self, Member};

/// Tells whether both are called, reached and known in the same way.
fn is_same_site(known: &Member, said: &Member) -> bool {
    let Member { id, name, key, urls, is_dialable, issuers, .. } = said;
    (id, name, key, urls, is_dialable, issuers)
        == (&known.id, &known.name, &known.key, &known.urls, &known.is_dialable, &known.issuers)
}

impl Fabric {
    /// Takes what a member says of members. Returns those that changed here.
    ///
    /// A site alone says how it is called and reached; of others that are known here, only the state is taken, and steps
    /// from one key to the next.
    ///
    /// # Errors
    /// Those of the catalog.
    pub async fn merge_from(&self, from: SiteId, members: Vec<Member>) -> Result<Vec<Member>> {
        let mut taken = Vec::new();
        for said in members {
            taken.extend(self.weigh(from, said).await?);
        }
        self.merge(taken).await
    }

    /// Returns what of a line of the roster is to be taken.
    async fn weigh(&self, from: SiteId, said: Member) -> Result<Option<Member>> {
        let (roster, own) = (self.roster(), self.own().id);
        let Some(known) = roster.known(said.id).cloned() else {
            let holder = roster.with_key(&SitePublicKey(said.key));
            if let Some(holder) = holder.or_else(|| roster.with_unconfirmed_key(&SitePublicKey(said.key))) {
                let (about, holder) = (said.name, &holder.name);
                tracing::warn!(%from, about, holder, "a site that is not known here is said to have another one's key");
                return Ok(None);
            }
            return Ok(Some(said));
        };
        if said.state == PeerState::Removed {
            // Whoever removes it may know another key of it.
            let Member { state, changed, changed_by, .. } = said;
            return Ok(Some(Member { state, changed, changed_by, ..(*known).clone() }));
        }
        if said.key != known.key {
            let is_new = said.id == from || said.changed > known.changed;
            if said.id == own || !self.learn_key(&known, &said, is_new).await? {
                return Ok(None);
            }
            // What a stolen key says besides is not worth more than the key.
            if self.roster().get(said.id).is_none_or(|known| !known.is_confirmed) {
                return Ok(None);
            }
        }
        let known = Member { key: said.key, ..(*known).clone() };
        if said.id == from {
            self.note_claimed_key(from, None);
        }
        if said.id == from && from != own || is_same_site(&known, &said) {
            return Ok(Some(said));
        }
        tracing::debug!(%from, about = said.name, "what a site says of another is left to that one to say");
        Ok(None)
    }

    /// Takes the step from the key that is known to the one that is said, if it is proved. Returns whether the site has the
    /// latter now. What is not proved is shown to the administrators if `is_new`.
    async fn learn_key(&self, known: &Member, said: &Member, is_new: bool) -> Result<bool> {
        let key = SitePublicKey(said.key);
        let step = match roster::step(known, said, Timestamp::now()) {
            Ok(step) => step,
            Err(why) => {
                if is_new && known.state != PeerState::Removed && self.note_claimed_key(known.id, Some(key)) {
                    let (site, key_id) = (&known.name, key.key_id());
                    tracing::warn!(
                        site,
                        key_id,
                        why,
                        "a key is refused that nothing proves to be that of the site"
                    );
                }
                return Ok(false);
            }
        };
        let is_confirmed = step.is_confirmed;
        match self.catalog().change_key(step, None).await {
            Ok(true) if is_confirmed => {
                tracing::info!(site = known.name, key_id = key.key_id(), "a site changed its key");
            }
            Ok(true) => {
                tracing::warn!(
                    site = known.name,
                    "a site revoked its key and is refused until its new one is confirmed"
                );
            }
            Ok(false) => {}
            Err(error) if error.code() == ErrorCode::AlreadyExists => {
                tracing::warn!(site = known.name, %error, "a change of a site's key is refused");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        self.reload().await?;
        self.note_claimed_key(known.id, None);
        Ok(self.roster().get(known.id).is_some_and(|now| now.key == said.key))
    }

    /// Hears from a site of the key that it has proved on its connection, which is not known to be its own.
    ///
    /// # Errors
    /// `site_refused`, saying what an administrator has to do.
    pub async fn introduced(&self, said: peer::Member, key: &SitePublicKey) -> Result<()> {
        let said = roster::from_wire(said)?;
        if said.key != key.0 {
            let detail = format!("{} named another key than it showed", said.name);
            return Err(Error::new(ErrorCode::SiteRefused, detail));
        }
        let known = self.member(said.id)?;
        if known.key != said.key && !self.learn_key(&known, &said, true).await? {
            return Err(Error::new(ErrorCode::SiteRefused, self.unproven(&known, key)));
        }
        let known = self.member(said.id)?;
        self.require_confirmed(&known)
    }

    /// Accepts a key of another member: `text` is the key, 64 hexadecimal digits, or the short name of one that it told
    /// of. An administrator has compared it.
    ///
    /// # Errors
    /// `invalid_request` for a text that names no key; `unsupported` for this site itself; `already_exists` for the key of
    /// another member.
    pub async fn confirm_key(&self, member: &Member, text: &str) -> Result<()> {
        let name = &member.name;
        if member.id == self.own().id {
            let detail = "a site knows its own key; the others confirm it";
            return Err(Error::new(ErrorCode::Unsupported, detail));
        }
        let told_of = self.contact(member.id).claimed_key.into_iter().chain([SitePublicKey(member.key)]);
        let key = match text.parse::<SitePublicKey>() {
            Ok(key) => key,
            Err(_) if text.len() == 16 => {
                told_of.into_iter().find(|key| key.key_id() == text).ok_or_else(|| {
                    let detail =
                        format!("{name} has told {} of no key '{text}'; give the whole key", self.own().name);
                    Error::new(ErrorCode::InvalidRequest, detail)
                })?
            }
            Err(error) => return Err(Error::new(ErrorCode::InvalidRequest, error.to_string())),
        };
        self.catalog().confirm_key(member.id, key.0).await?;
        tracing::info!(site = name, key_id = key.key_id(), "the key of a site was confirmed");
        self.note_claimed_key(member.id, None);
        self.reload().await?;
        self.spread();
        Ok(())
    }

    /// Says what an administrator has to do about the key of a member.
    pub fn key_trouble(&self, member: &Member) -> Option<String> {
        if !member.is_confirmed {
            let (own, name, key) = (&self.own().name, &member.name, SitePublicKey(member.key));
            let why = format!(
                "{name} has revoked its key, since others may know it, and is refused by {own} until an administrator of {own} confirms its new key"
            );
            return Some(format!("{why} {}", self.how_to_confirm(name, &key)));
        }
        let claimed = self.contact(member.id).claimed_key?;
        Some(self.unproven(member, &claimed))
    }

    pub(crate) fn unproven(&self, member: &Member, key: &SitePublicKey) -> String {
        let (own, name) = (&self.own().name, &member.name);
        let why = format!(
            "{name} is said to have a key that the one which {own} knows does not prove: it changed more than once, or without the old one, or it is not {name} that says so; an administrator of {own} confirms the key"
        );
        format!("{why} {}", self.how_to_confirm(name, key))
    }

    fn how_to_confirm(&self, name: &str, key: &SitePublicKey) -> String {
        let (own, id) = (&self.own().name, key.key_id());
        format!(
            "{id} if `percale site show {name}` at {name} shows the same: `percale site confirm-key {name} {key}` at {own}"
        )
    }

    /// Fails for a member that is refused until its key is confirmed.
    ///
    /// # Errors
    /// `site_refused`, saying what an administrator has to do.
    pub fn require_confirmed(&self, member: &Member) -> Result<()> {
        match self.key_trouble(member) {
            Some(trouble) if !member.is_confirmed => Err(Error::new(ErrorCode::SiteRefused, trouble)),
            _ => Ok(()),
        }
    }

    /// Tells the roster to all others that can be reached, in the background. Those that cannot hear of it at the next
    /// exchange.
    pub(crate) fn spread(&self) {
        for member in self.others() {
            let fabric = self.clone();
            tokio::spawn(async move {
                if let Err(error) = fabric.exchange(member.id).await {
                    tracing::debug!(site = member.name, %error, "cannot tell a site of the roster yet");
                }
            });
        }
    }

    /// Exchanges rosters with a member. If one of the two does not know the other's key, that is learned first.
    ///
    /// # Errors
    /// It cannot be reached, refuses this site, or answers with what cannot be taken.
    pub async fn exchange(&self, id: SiteId) -> Result<()> {
        let theirs = match self.tell_roster(id).await {
            Err(error) => {
                self.make_known(id, error).await?;
                self.tell_roster(id).await?
            }
            Ok(theirs) => theirs,
        };
        self.merge_from(id, roster::all_from_wire(theirs)?).await.map(drop)
    }

    async fn tell_roster(&self, id: SiteId) -> Result<peer::Roster> {
        let client = self.client(id, &Acting::Site)?;
        Ok(client.peer_roster(&self.roster().to_wire()).await?)
    }

    /// Learns the key of a member that showed another one than is known, or shows it that of this site if it refused it.
    ///
    /// # Errors
    /// `error` if it is about something else; why the key is not accepted.
    async fn make_known(&self, id: SiteId, error: Error) -> Result<()> {
        let member = self.member(id)?;
        let route = self.route(&member)?;
        if !member.is_confirmed || matches!(route, Route::Relay(_)) {
            return Err(error);
        }
        match &route {
            Route::Direct(urls) if is_unexpected_key(&error) => {
                // Of several servers, some may not have taken the new key up yet.
                for url in urls {
                    let Ok(said) = self.anybody(url)?.peer_key().await else { continue };
                    let said = roster::from_wire(said)?;
                    let is_it = said.id == id && said.key != member.key;
                    if is_it && self.learn_key(&member, &said, true).await? {
                        return Ok(());
                    }
                }
                let detail = self.key_trouble(&member).unwrap_or_else(|| error.to_string());
                Err(Error::new(ErrorCode::SiteRefused, detail))
            }
            _ if error.code() == ErrorCode::SiteRefused => {
                let own = self.roster().get(self.own().id).map(|own| roster::to_wire(own)).ok_or(error)?;
                Ok(self.connected(&member, route)?.peer_show_key(&own).await?)
            }
            _ => Err(error),
        }
    }

    /// Returns what this site says of itself.
    ///
    /// # Errors
    /// `site_refused` if it was removed.
    pub fn introduction(&self) -> Result<peer::Member> {
        self.member(self.own().id).map(|own: Arc<Member>| roster::to_wire(&own))
    }
}
