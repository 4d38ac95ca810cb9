//! A value that is never printed.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

/// A secret: overwritten in memory when it is dropped, and shown as `<redacted>` by `Debug` and `Display`, so that it
/// does not reach a log or an error message.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T: Zeroize>(Zeroizing<T>);

impl<T: Zeroize> Secret<T> {
    /// Takes a value into custody.
    pub fn new(value: T) -> Self {
        Self(Zeroizing::new(value))
    }

    /// Returns the value itself, for the one place that needs it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl<T: Zeroize> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "<redacted> <redacted> Some(<redacted>)"
        );
        assert_eq!(secret.expose(), "hunter2");
    }
}
