//! What is kept of issued tokens.

use percale_core::Timestamp;
use percale_core::access::Caller;
use percale_core::ids::TokenId;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Query, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::TokenRecord;
use crate::rows::kept;

/// Tokens.
impl Catalog {
    /// Notes an issued token.
    pub async fn record_token(&self, token: TokenRecord) -> Result<()> {
        self.change(Record(token)).await
    }

    /// Withdraws a token: one's own, or any for an administrator. Again is the same as once.
    ///
    /// # Errors
    /// `NotFound`, also for a token of somebody else.
    pub async fn revoke_token(&self, caller: &Caller, id: TokenId) -> Result<()> {
        self.change(Revoke { caller: caller.clone(), id }).await
    }

    /// Returns the caller's tokens that have not ended, all of them for an administrator, in the order of issue.
    pub async fn tokens(&self, caller: &Caller) -> Result<Vec<TokenRecord>> {
        self.ask(List(caller.clone())).await
    }

    /// Returns the tokens that were withdrawn at or after a time and would not have ended yet.
    pub async fn revoked_since(&self, since: Timestamp) -> Result<Vec<TokenId>> {
        self.ask(RevokedSince(since)).await
    }

    /// Tells whether a token was withdrawn. One that is not known was not.
    pub async fn is_revoked(&self, id: TokenId) -> Result<bool> {
        self.ask(IsRevoked(id)).await
    }
}

struct Record(TokenRecord);

impl Change for Record {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        if self.0.label.as_ref().is_some_and(|label| label.len() > 255 || label.chars().any(char::is_control))
        {
            return Err(Error::invalid(
                "the label of a token has at most 255 bytes and no control characters",
            ));
        }
        if kept::token(batch.tx, self.0.id).await?.is_some() {
            let message = format!("there is a token {} already", self.0.id);
            return Err(Error::new(ErrorKind::AlreadyExists { version: None }, message));
        }
        kept::insert_token(batch.tx, &self.0).await
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct Revoke {
    caller: Caller,
    id: TokenId,
}

impl Change for Revoke {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let Self { caller, id } = self;
        let token = kept::token(batch.tx, *id).await?;
        let is_ours = |token: &TokenRecord| caller.is_admin() || caller.user.as_ref() == Some(&token.subject);
        if !token.as_ref().is_some_and(is_ours) {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no token {id}")));
        }
        kept::revoke_token(batch.tx, *id, batch.now()).await.map(drop)
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct List(Caller);

impl Query for List {
    type Out = Vec<TokenRecord>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<TokenRecord>> {
        let subject = match &self.0.user {
            _ if self.0.is_admin() => None,
            None => return Ok(Vec::new()),
            Some(user) => Some(user.to_string()),
        };
        kept::tokens(tx, subject, tx.now()).await
    }
}

struct RevokedSince(Timestamp);

impl Query for RevokedSince {
    type Out = Vec<TokenId>;
    async fn run<T: Tx>(&self, tx: &T) -> Result<Vec<TokenId>> {
        kept::revoked_since(tx, self.0, tx.now()).await
    }
}

struct IsRevoked(TokenId);

impl Query for IsRevoked {
    type Out = bool;
    const SNAPSHOT: bool = false;
    async fn run<T: Tx>(&self, tx: &T) -> Result<bool> {
        Ok(kept::token(tx, self.0).await?.is_some_and(|token| token.revoked.is_some()))
    }
}
