//! Errors that say which store they are of.

use super::layer::{Layer, Work, Wrapped};
use crate::{Operation, SharedStore};

/// A store whose errors have its name.
pub type Named = Wrapped<NamedLayer>;

#[derive(Debug)]
#[doc(hidden)]
pub struct NamedLayer {
    store: String,
}

impl Named {
    /// Wraps a store that has this name.
    pub fn new(store: SharedStore, name: impl Into<String>) -> Self {
        Self::over(store, NamedLayer { store: name.into() })
    }
}

impl Layer for NamedLayer {
    fn step<'a, T: Send + 'a>(&'a self, _operation: Operation, work: Work<'a, T>) -> Work<'a, T> {
        Box::pin(async move { work.await.map_err(|error| error.of(&self.store)) })
    }

    fn batch<'a, I, T, W>(
        &'a self,
        _operation: Operation,
        items: Vec<I>,
        work: W,
    ) -> Work<'a, Vec<crate::Result<T>>>
    where
        I: Clone + Send + Sync + 'a,
        T: Send + 'a,
        W: Fn(Vec<I>) -> Work<'a, Vec<crate::Result<T>>> + Send + Sync + 'a,
    {
        let named = |error: crate::Error| error.of(&self.store);
        Box::pin(async move {
            let results = work(items).await.map_err(named)?;
            Ok(results.into_iter().map(|result| result.map_err(named)).collect())
        })
    }
}
