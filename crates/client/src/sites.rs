//! The sites of the fabric.

use std::time::Duration;

use percale_api::Page;
use percale_api::directions::Directions;
use percale_api::peer::{
    Accept, Invitation, KeyConfirmation, KeyRotated, KeyRotation, MemberChange, MemberState, NewInvitation,
    SiteStatus,
};
use reqwest::Method;

use crate::call::{Call, Repeat};
use crate::client::Client;
use crate::control::component;

impl Client {
    /// Lists the sites of the fabric, by name.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn all_sites(&self) -> crate::Result<Vec<SiteStatus>> {
        let page: Page<SiteStatus> = self.json(Call::new("list sites", Method::GET, "/v1/sites")).await?;
        Ok(page.items)
    }

    /// Has the site find out, by dialling, which ways there are between it and the others. For administrators.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn directions(&self) -> crate::Result<Directions> {
        let call = Call::new("look at the ways between sites", Method::POST, "/v1/sites/directions");
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Shows a site of the fabric.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn member(&self, name: &str) -> crate::Result<SiteStatus> {
        self.json(Call::new(format!("show site {name}"), Method::GET, component("/v1/sites", name))).await
    }

    /// Makes an invitation for another site; a day long if no life is given.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn invite_site(&self, life: Option<Duration>) -> crate::Result<Invitation> {
        let new = NewInvitation { life_s: life.map(|life| life.as_secs()) };
        self.json(Call::new("invite a site", Method::POST, "/v1/sites/invitations").json(&new)).await
    }

    /// Lets the site join the fabric of the one that made the invitation. Returns the sites.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn join_site(&self, invitation: &str) -> crate::Result<Vec<SiteStatus>> {
        let accept = Accept { invitation: invitation.to_owned() };
        let call = Call::new("join a fabric", Method::POST, "/v1/sites/join").json(&accept);
        // The same site may use an invitation again.
        let page: Page<SiteStatus> = self.json(call.repeat(Repeat::Safe)).await?;
        Ok(page.items)
    }

    /// Drains a site, or takes that back.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn change_member(&self, name: &str, state: MemberState) -> crate::Result<SiteStatus> {
        let call = Call::new(format!("change site {name}"), Method::PATCH, component("/v1/sites", name));
        self.json(call.json(&MemberChange { state }).repeat(Repeat::Safe)).await
    }

    /// Changes the key of the site that is asked, which has the key `key` now.
    ///
    /// # Errors
    /// As the server answers; `precondition_failed` if it has another key.
    pub async fn rotate_key(&self, key: &str, compromised: bool) -> crate::Result<KeyRotated> {
        let rotation = KeyRotation { key: key.to_owned(), compromised };
        let call = Call::new("change the site's key", Method::POST, "/v1/site/key").json(&rotation);
        self.json(call.repeat(Repeat::Safe)).await
    }

    /// Says which key another site has: 64 hexadecimal digits, or its short name of 16.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn confirm_key(&self, name: &str, key: &str) -> crate::Result<SiteStatus> {
        let path = format!("{}/key", component("/v1/sites", name));
        let call = Call::new(format!("confirm the key of site {name}"), Method::PUT, path);
        self.json(call.json(&KeyConfirmation { key: key.to_owned() }).repeat(Repeat::Safe)).await
    }

    /// Removes a site from the fabric.
    ///
    /// # Errors
    /// As the server answers.
    pub async fn remove_member(&self, name: &str) -> crate::Result<()> {
        let call = Call::new(format!("remove site {name}"), Method::DELETE, component("/v1/sites", name));
        self.fetch(call).await.map(drop)
    }
}
