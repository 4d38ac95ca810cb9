//! What a site proves and protects: its key, the tokens it issues, TLS, and secrets at rest.
//!
//! | module | holds |
//! |---|---|
//! | [`site_key`] | [`SiteKey`], the Ed25519 key that everything signed by the site is checked with |
//! | [`token`] | [`TokenIssuer`] and [`TokenVerifier`], the tokens of the built-in issuer |
//! | [`admin_token`] | the administrator's first token, written into the state directory |
//! | [`signed`] | [`Statement`], [`Delegation`], [`Ticket`] and [`KeyChange`], what sites sign for each other |
//! | [`invitation`] | [`Invitation`], with which a site joins a fabric |
//! | [`tls`] | [`ServerTls`] from files or made by the site itself, the set-up of clients, and TLS between sites |
//! | [`seal`] | [`Sealer`], secrets encrypted for the database, and random bytes |
//! | [`secret`] | [`Secret`], a value that is never printed |
//!
//! All cryptography is aws-lc-rs. Nothing here talks to a network or a database; the clock is handed in.

pub mod admin_token;
mod error;
pub mod invitation;
mod private_file;
pub mod seal;
pub mod secret;
pub mod signed;
pub mod site_key;
pub mod tls;
pub mod token;

pub use error::{Error, ErrorKind};
pub use invitation::Invitation;
pub use seal::{Sealer, random};
pub use secret::Secret;
pub use signed::{
    Clock, Delegation, KeyChange, ReceiptSeal, ReplayGuard, Signatory, SignedError, Statement, Ticket,
    TicketOp, claimed_site, vouches,
};
pub use site_key::{SiteKey, SitePublicKey, SitePublicKeyError};
pub use tls::{
    SITE_ALPN, ServerTls, SiteCertificate, TlsConfigs, client_config, install_crypto_provider,
    site_client_config, site_peer, unpinned_client_config,
};
pub use token::{IssueRequest, IssuedToken, TokenError, TokenIssuer, TokenVerifier, VerifiedToken};
