//! Idempotency keys: the same request again gets the same answer.

use std::collections::HashMap;
use std::time::Duration;

use crate::batch::{Batch, Written};
use crate::catalog::Catalog;
use crate::engine::{Change, Tx};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{Answer, AnswerKey, Remembered};
use crate::rows::kept::{self, KeptAnswer};

/// For how long an answer is kept.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// Idempotency keys.
impl Catalog {
    /// Notes that a request with this key has begun, or tells what is known of it.
    ///
    /// A request counts as in progress for [`crate::IN_PROGRESS_FOR`]: after that its server has died, and it begins
    /// again.
    pub async fn remember(&self, key: &AnswerKey, request_hash: [u8; 32]) -> Result<Remembered> {
        self.change(Remember { key: key.clone(), hash: request_hash.to_vec() }).await
    }

    /// Keeps the answer for 24 hours.
    ///
    /// # Errors
    /// `NotFound` if no request with this key has begun.
    pub async fn answer(&self, key: &AnswerKey, answer: Answer) -> Result<()> {
        self.change(Keep { key: key.clone(), answer }).await
    }

    /// Forgets a request that failed and may be repeated with the same key; not one that was answered meanwhile.
    pub async fn forget(&self, key: &AnswerKey) -> Result<()> {
        self.change(Forget(key.clone())).await
    }
}

/// Keeps answers in the transaction of what they answer.
pub(crate) async fn keep<T: Tx>(tx: &T, answers: HashMap<AnswerKey, Answer>) -> Result<()> {
    let expires = tx.now().after(KEEP);
    for (key, answer) in answers {
        kept::set_answer(tx, &key, &answer, expires).await?;
    }
    Ok(())
}

struct Remember {
    key: AnswerKey,
    hash: Vec<u8>,
}

impl Change for Remember {
    type Draft = Remembered;
    type Out = Remembered;

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<Remembered> {
        let Self { key, hash } = self;
        if key.key.is_empty() || key.key.len() > 255 || key.key.chars().any(char::is_control) {
            return Err(Error::invalid("an idempotency key has 1 to 255 bytes and no control characters"));
        }
        let now = batch.now();
        let known = kept::answer(batch.tx, key).await?;
        let is_over = |known: &KeptAnswer| {
            let is_dead = known.answer.is_none() && known.since.after(crate::IN_PROGRESS_FOR) <= now;
            known.expires <= now || (is_dead && known.hash == *hash)
        };
        match &known {
            Some(known) if !is_over(known) => Ok(match &known.answer {
                _ if known.hash != *hash => Remembered::Mismatch,
                Some(answer) => Remembered::Same(answer.clone()),
                None => Remembered::InProgress,
            }),
            known => {
                let new =
                    KeptAnswer { hash: hash.clone(), answer: None, since: now, expires: now.after(KEEP) };
                kept::begin(batch.tx, key, &new, known.is_some()).await?;
                Ok(Remembered::First)
            }
        }
    }

    fn finish(self, remembered: Remembered, _written: &Written) -> Remembered {
        remembered
    }
}

struct Keep {
    key: AnswerKey,
    answer: Answer,
}

impl Change for Keep {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        let expires = batch.now().after(KEEP);
        match kept::set_answer(batch.tx, &self.key, &self.answer, expires).await? {
            0 => {
                let message = format!("no request with the idempotency key '{}' has begun", self.key.key);
                Err(Error::new(ErrorKind::NotFound, message))
            }
            _ => Ok(()),
        }
    }

    fn finish(self, (): (), _written: &Written) {}
}

struct Forget(AnswerKey);

impl Change for Forget {
    type Draft = ();
    type Out = ();

    async fn run<T: Tx>(&self, batch: &mut Batch<'_, T>) -> Result<()> {
        kept::forget(batch.tx, &self.0).await
    }

    fn finish(self, (): (), _written: &Written) {}
}
