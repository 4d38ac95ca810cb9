//! Invitations: how a site becomes a member, and how it stops being one (`docs/design/trust.md`).

use std::time::Duration;

use percale_api::peer::{Join, Roster as WireRoster};
use percale_catalog::PeerState;
use percale_core::access::Caller;
use percale_core::ids::SiteId;
use percale_core::{ErrorCode, Timestamp};
use percale_trust::SitePublicKey;
use percale_trust::invitation::Invitation;
use percale_trust::signed::MAX_CLOCK_ALLOWANCE;

use crate::error::{Error, Result};
use crate::fabric::{Fabric, newer_than};
use crate::roster::{self, Member};

/// How long an invitation is good if nothing is said.
pub const DEFAULT_LIFE: Duration = Duration::from_secs(24 * 3600);
/// The longest life of an invitation.
pub const MAX_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

impl Fabric {
    /// Makes an invitation, good once.
    ///
    /// # Errors
    /// `invalid_request` for a life that is too long; `unsupported` at a site that cannot be dialled, since whoever joins
    /// must reach it.
    pub async fn invite(&self, caller: &Caller, life: Duration) -> Result<Invitation> {
        let own = self.own();
        if !own.is_dialable() {
            let detail = "this site only dials out; make the invitation at a site that can be dialled";
            return Err(Error::new(ErrorCode::Unsupported, detail));
        }
        if life > MAX_LIFE || life < Duration::from_secs(1) {
            let detail = "an invitation is good for a second to 30 days";
            return Err(Error::new(ErrorCode::InvalidRequest, detail));
        }
        let expires = Timestamp::now().after(life);
        let urls = crate::servers::urls(self).await?;
        let invitation = Invitation::new(urls, own.name.clone(), own.id, self.key().key.public(), expires)?;
        self.catalog().add_invitation(invitation.secret_hash(), caller, expires).await?;
        Ok(invitation)
    }

    /// Joins the fabric of the site that made an invitation.
    ///
    /// # Errors
    /// `invalid_request` for a line that is no invitation or has expired; what the other site answers.
    pub async fn accept(&self, line: &str) -> Result<()> {
        let own = self.own();
        let invitation: Invitation = line.parse()?;
        // By the clock of the inviting site, which decides in the end; what surely is over need not be asked about.
        let now = Timestamp::now();
        if invitation.expires.after(MAX_CLOCK_ALLOWANCE) <= now {
            let detail = format!("the invitation of {} expired at {}", invitation.name, invitation.expires);
            return Err(Error::new(ErrorCode::InvalidRequest, detail));
        }
        if invitation.id == own.id {
            return Err(Error::new(ErrorCode::InvalidRequest, "the invitation is this site's own"));
        }
        let member = self.roster().get(own.id).cloned().ok_or_else(|| {
            Error::new(
                ErrorCode::SiteRefused,
                "this site was removed from its fabric; it joins again as a new site",
            )
        })?;
        let proof = hex::encode(invitation.prove(&self.key().key.public(), own.id)?);
        let join = Join { member: roster::to_wire(&member), proof };
        let mut last = None;
        for url in &invitation.urls {
            let client = self.stranger(url, invitation.key)?;
            match client.peer_join(&join).await {
                Ok(roster) => return self.take_roster(&invitation, roster).await,
                Err(error) if error.as_problem().is_some() => return Err(error.into()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(
            || Error::new(ErrorCode::InvalidRequest, "the invitation names no address"),
            Error::from,
        ))
    }

    /// What the inviting site says must at least be true of itself.
    async fn take_roster(&self, invitation: &Invitation, roster: WireRoster) -> Result<()> {
        let members = roster::all_from_wire(roster)?;
        let says_so = members
            .iter()
            .any(|member| member.id == invitation.id && SitePublicKey(member.key) == invitation.key);
        if !says_so {
            let detail =
                format!("{} does not name itself in its roster as in its invitation", invitation.name);
            return Err(Error::new(ErrorCode::SiteRefused, detail));
        }
        self.merge(members).await?;
        // The line came from its administrator, so it says which key the site has, whatever was known before.
        if self.roster().get(invitation.id).is_some_and(|known| known.key != invitation.key.0) {
            self.catalog().confirm_key(invitation.id, invitation.key.0).await?;
            self.reload().await?;
        }
        Ok(())
    }

    /// Lets a site in that proves an invitation of this one. `key` is what it showed on its connection.
    ///
    /// # Errors
    /// `invalid_request` for an invitation that is used up, expired or altered; `site_refused` for another key than the
    /// site shows, or has if it is a member already.
    pub async fn admit(&self, join: Join, key: &SitePublicKey) -> Result<WireRoster> {
        let member = Member { is_confirmed: true, ..roster::from_wire(join.member)? };
        if SitePublicKey(member.key) != *key {
            let detail = format!("{} named another key than it showed", member.name);
            return Err(Error::new(ErrorCode::SiteRefused, detail));
        }
        if member.state != PeerState::Active || member.changed_by != member.id {
            return Err(Error::new(
                ErrorCode::InvalidRequest,
                "a site joins by its own word, as an active one",
            ));
        }
        if self.roster().all().any(|known| known.id == member.id && known.state == PeerState::Removed) {
            let detail = "the site was removed from this fabric; it joins again as a new site";
            return Err(Error::new(ErrorCode::SiteRefused, detail));
        }
        // An invitation makes members, it does not put another in the place of one.
        if let Some(known) = self.roster().get(member.id).filter(|known| known.key != key.0) {
            return Err(Error::new(ErrorCode::SiteRefused, self.unproven(known, key)));
        }
        let mut proof = [0; 32];
        let used = hex::decode_to_slice(&join.proof, &mut proof).is_ok().then_some(());
        let mut found = None;
        if used.is_some() {
            for hash in self.catalog().invitation_hashes().await? {
                if Invitation::check_proof(&hash, key, member.id, &proof) {
                    found = Some(hash);
                }
            }
        }
        let hash = found.ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidRequest,
                "the invitation is not known here: used, expired or altered",
            )
        })?;
        let name = member.name.clone();
        if self.roster().named(&name).is_some_and(|known| known.id != member.id) {
            let detail = format!("there is a site '{name}' in this fabric already");
            return Err(Error::new(ErrorCode::AlreadyExists, detail));
        }
        self.catalog().use_invitation(hash, member.id).await?;
        self.merge(vec![member]).await?;
        tracing::info!(site = name, "a site joined");
        self.spread();
        Ok(self.roster().to_wire())
    }

    /// Changes what all sites know of a member: its state.
    ///
    /// # Errors
    /// `not_found`; `unsupported` for this site itself, which another must remove.
    pub async fn set_state(&self, id: SiteId, state: PeerState) -> Result<()> {
        let own = self.own().id;
        if id == own && state == PeerState::Removed {
            let detail = "a site does not remove itself; ask another member to";
            return Err(Error::new(ErrorCode::Unsupported, detail));
        }
        let known = self.member(id)?;
        let member = Member { state, changed: newer_than(Some(&known)), changed_by: own, ..(*known).clone() };
        self.merge(vec![member]).await?;
        self.spread();
        Ok(())
    }
}
