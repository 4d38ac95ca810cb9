//! A member that is not a Percale server: it says whatever a test wants it to.

use http::{HeaderMap, HeaderName, HeaderValue};
use percale_api::fields;
use percale_api::peer::{Join, Member, MemberState};
use percale_client::{Client, ClientOptions, RetryPolicy};
use percale_core::Timestamp;
use percale_core::access::Caller;
use percale_core::ids::{SiteId, TokenId};
use percale_trust::invitation::Invitation;
use percale_trust::signed::Statement;
use percale_trust::site_key::SITE_KEY_FILE;
use percale_trust::tls::{CertificateSource, SiteCertificate, TlsConfigs, site_client_config};
use percale_trust::{ServerTls, SiteKey, SitePublicKey};
use std::path::Path;
use std::time::Duration;

use crate::fabric::Site;

/// A site of which there is only the key.
pub struct Liar {
    pub name: &'static str,
    pub id: SiteId,
    pub key: SiteKey,
    certificate: SiteCertificate,
    state: tempfile::TempDir,
}

impl Liar {
    pub fn new(name: &'static str) -> Self {
        let state = tempfile::tempdir().unwrap();
        Self::made(name, SiteId::new(), state)
    }

    /// Somebody who has copied the key of a site.
    pub fn thief(name: &'static str, id: SiteId, key: &Path) -> Self {
        let state = tempfile::tempdir().unwrap();
        std::fs::copy(key, state.path().join(SITE_KEY_FILE)).unwrap();
        Self::made(name, id, state)
    }

    fn made(name: &'static str, id: SiteId, state: tempfile::TempDir) -> Self {
        percale_trust::install_crypto_provider();
        let key = SiteKey::load_or_create(state.path()).unwrap();
        let certificate = SiteCertificate::new(&key, id, Timestamp::now()).unwrap();
        Self { name, id, key, certificate, state }
    }

    /// What it says of itself.
    pub fn member(&self) -> Member {
        Member {
            id: self.id,
            name: self.name.into(),
            key: self.key.public().to_string(),
            old_key: None,
            old_key_until: None,
            key_change: None,
            is_unconfirmed: false,
            urls: Vec::new(),
            is_dialable: false,
            issuers: Vec::new(),
            state: MemberState::Active,
            changed: Timestamp::now(),
            changed_by: self.id,
        }
    }

    /// A key that it could have next.
    pub fn next_key(&self) -> SiteKey {
        SiteKey::prepare_next(self.state.path()).unwrap()
    }

    /// A connection to a site, on which nothing is repeated.
    pub async fn dial(&self, site: &Site) -> Client {
        let own = site.admin.get(&format!("/v1/sites/{}", site.name)).await.expect(200);
        let key: SitePublicKey = own["key"].as_str().unwrap().parse().unwrap();
        let mut options = ClientOptions::new(site.admin.url.clone());
        options.site_tls = Some(site_client_config(&self.certificate, vec![key]).unwrap());
        options.retry = RetryPolicy::never();
        Client::new(options).unwrap()
    }

    /// What it shows when it is dialled.
    pub fn server_configs(&self) -> TlsConfigs {
        let names = vec!["localhost".to_owned()];
        let source = CertificateSource::OwnCa { directory: self.state.path().join("tls"), names };
        let tls = ServerTls::load(source, Some(self.certificate.clone()), Timestamp::now()).unwrap();
        tls.configs()
    }

    /// Becomes a member of a site's fabric.
    pub async fn join(&self, site: &Site) -> Client {
        self.join_at(site, Vec::new()).await
    }

    /// The same, as one that can be dialled.
    pub async fn join_at(&self, site: &Site, urls: Vec<String>) -> Client {
        let invitation: Invitation = site.invite().await.parse().unwrap();
        let proof = hex::encode(invitation.prove(&self.key.public(), self.id).unwrap());
        let client = self.dial(site).await;
        let mut member = self.member();
        (member.is_dialable, member.urls) = (!urls.is_empty(), urls);
        client.peer_join(&Join { member, proof }).await.unwrap();
        client
    }

    /// A good statement for a site, to be made worse.
    pub fn statement(&self, to: SiteId, caller: Option<Caller>) -> Statement {
        let now = Timestamp::now();
        let expires = now.after(Duration::from_secs(60));
        let (issuer_site, audience, id) = (self.id, to, TokenId::new());
        Statement { issuer_site, audience, caller, via: None, issued: now, expires, id }
    }

    /// Says who asks.
    pub fn saying(&self, client: &Client, statement: &Statement) -> Client {
        with_field(client, fields::STATEMENT, &statement.sign(&self.key).unwrap())
    }
}

pub fn with_field(client: &Client, name: &'static str, value: &str) -> Client {
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    client.with_headers(headers)
}
