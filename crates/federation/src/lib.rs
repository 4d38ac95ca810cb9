//! Sites of a fabric: who belongs to it, how each is reached, and following the journals of other homes.
//!
//! | module | holds |
//! |---|---|
//! | [`fabric`] | [`Fabric`]: this site among the others; a client for each of them |
//! | [`contact`] | what is known of the way to each of them |
//! | [`roster`] | the members, as all sites tell each other |
//! | [`joining`] | invitations |
//! | [`keys`] | changes of this site's key |
//! | [`learning`] | what other sites say of members and their keys |
//! | [`directions`] | which of two sites can dial the other |
//! | [`reverse`] | connections of sites that only dial out |
//! | [`follow`] | journals of other homes into the catalog of this site |
//! | [`servers`] | the servers of this site |
//! | [`tell`] | copies and states at this site to the homes of their spaces |
//!
//! Nothing here serves requests: `server` does, and hands over what comes (`docs/design/federation.md`).

pub mod contact;
pub mod directions;
mod error;
pub mod fabric;
pub mod follow;
pub mod joining;
pub mod keys;
pub mod learning;
pub mod reverse;
pub mod roster;
pub mod servers;
pub mod tell;

pub use contact::Contact;
pub use error::{Error, Result};
pub use fabric::{Acting, Fabric, OwnKey, OwnSite, Route, TICKET_LIFE};
pub use roster::{Member, Roster};
