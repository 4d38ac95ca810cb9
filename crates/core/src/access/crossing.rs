//! Identities that cross from one site to another (`docs/design/trust.md`, "Who is asking").

use super::{Caller, Identity, Issuer, Scope, Subject};

/// Longest name of a site, in bytes.
pub const MAX_SITE_NAME_BYTES: usize = 63;

/// Tells whether the text may name a site: 1 to 63 of `a-z`, `0-9`, `-`, `.`, `_`.
pub fn is_site_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    (1..=MAX_SITE_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

impl Issuer {
    /// What the issuer of another site's own users begins with; the name of the site follows.
    pub const SITE_PREFIX: &str = "site:";

    /// Returns the built-in issuer of the site of this name, as it is called at every other site.
    pub fn site(name: &str) -> Self {
        Self(format!("{}{name}", Self::SITE_PREFIX))
    }

    /// Returns the name of the site whose built-in issuer this is, seen from another site.
    pub fn as_site(&self) -> Option<&str> {
        self.0.strip_prefix(Self::SITE_PREFIX)
    }

    /// Tells whether the text is well formed as what follows the `@` of an identity, or nothing if it is not even meant
    /// as an issuer.
    pub(super) fn check(text: &str) -> Option<bool> {
        match text.strip_prefix(Self::SITE_PREFIX) {
            Some(name) => Some(is_site_name(name)),
            None if text == Self::LOCAL => Some(true),
            None if text.starts_with("https://") || text.starts_with("http://") => Some(true),
            None => None,
        }
    }

    fn seen(&self, at: &str, by: &str) -> Self {
        match self.as_site() {
            _ if at == by => self.clone(),
            None if self.0 == Self::LOCAL => Self::site(at),
            Some(site) if site == by => Self::local(),
            _ => self.clone(),
        }
    }
}

impl Identity {
    /// Returns how the site named `by` calls what the site named `at` calls `self`: users of the built-in issuer of `at`
    /// get the issuer `site:AT`, those of `by` become its own, all others stay as they are.
    pub fn seen(&self, at: &str, by: &str) -> Self {
        Self { issuer: self.issuer.seen(at, by), name: self.name.clone() }
    }
}

impl Subject {
    /// Returns how the site named `by` calls what the site named `at` calls `self`; see [`Identity::seen`].
    pub fn seen(&self, at: &str, by: &str) -> Self {
        match self {
            Self::User(identity) => Self::User(identity.seen(at, by)),
            Self::Group(identity) => Self::Group(identity.seen(at, by)),
            Self::Anyone => Self::Anyone,
        }
    }
}

impl Caller {
    /// Returns how the site named `by` sees whom the site named `at` calls `self`; see [`Identity::seen`].
    ///
    /// The scope `admin` does not cross: an administrator of one site is an ordinary user at every other, with all that
    /// the grants there give, unless other scopes remain. Within one site nothing changes.
    pub fn seen(&self, at: &str, by: &str) -> Self {
        if at == by {
            return self.clone();
        }
        Self {
            user: self.user.as_ref().map(|user| user.seen(at, by)),
            groups: self.groups.iter().map(|group| group.seen(at, by)).collect(),
            scopes: self.scopes.iter().filter(|scope| **scope != Scope::Admin).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(text: &str) -> Identity {
        text.parse().unwrap()
    }

    #[test]
    fn the_table_of_the_trust_page_holds() {
        let alice = Identity::local("alice");
        assert_eq!(alice.seen("alps", "baltic").to_string(), "alice@site:alps");
        assert_eq!(identity("alice@site:alps").issuer.as_site(), Some("alps"));
        assert_eq!(identity("alice@site:alps").seen("baltic", "alps"), alice);
        assert_eq!(identity("alice@site:alps").seen("baltic", "crete"), identity("alice@site:alps"));
        let carol = identity("carol@https://id.example.org");
        assert_eq!(carol.seen("alps", "baltic"), carol);
        assert_eq!(alice.seen("alps", "alps"), alice);
        assert_eq!(Subject::Anyone.seen("alps", "baltic"), Subject::Anyone);
        let group: Subject = "group:wp3".parse().unwrap();
        assert_eq!(group.seen("alps", "baltic").to_string(), "group:wp3@site:alps");
    }

    #[test]
    fn an_administrator_is_an_ordinary_user_elsewhere() {
        let admin = Caller::admin(Identity::local("root"));
        let seen = admin.seen("alps", "baltic");
        assert_eq!(seen, Caller::user(identity("root@site:alps")));
        assert!(!seen.is_admin());
        let read: Scope = "read:/climate".parse().unwrap();
        let both = Caller { scopes: vec![Scope::Admin, read.clone()], ..admin.clone() };
        assert_eq!(both.seen("alps", "baltic").scopes, [read]);
        assert_eq!(admin.seen("alps", "alps"), admin);
    }

    #[test]
    fn names_of_sites_are_checked() {
        let longest = "x".repeat(MAX_SITE_NAME_BYTES);
        for name in ["alps", "a-1.b_2", longest.as_str()] {
            let text = format!("alice@site:{name}");
            assert_eq!(identity(&text), Identity { issuer: Issuer::site(name), name: "alice".into() });
            assert_eq!(identity(&text).to_string(), text);
        }
        // Not taken for a local user of that name, which a reader would not notice.
        for text in [
            "a@site:".to_owned(),
            "a@site:Alps".into(),
            "a@site:a b".into(),
            format!("a@site:{longest}x"),
            "@site:alps".into(),
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text:?} was accepted");
        }
    }

    proptest! {
        /// Whatever a site may know, another calls by a name that leads back to it, and no two by one name.
        #[test]
        fn there_and_back_is_the_same(
            name in "[^\\p{Cc}]{1,20}",
            other in "[^\\p{Cc}]{1,20}",
            issuers in prop::collection::vec(
                prop::sample::select(vec!["local", "site:baltic", "site:crete", "https://id.example.org"]), 2
            ),
        ) {
            let make = |name: &str, issuer: &str| Identity { issuer: Issuer(issuer.into()), name: name.into() };
            let (one, two) = (make(&name, issuers[0]), make(&other, issuers[1]));
            let crossed = one.seen("alps", "baltic");
            prop_assert_eq!(crossed.seen("baltic", "alps"), one.clone());
            prop_assert_eq!(crossed == two.seen("alps", "baltic"), one == two);
            prop_assert_eq!(crossed.to_string().parse::<Identity>(), Ok(crossed.clone()));
            // By way of a third site it is called the same.
            prop_assert_eq!(one.seen("alps", "crete").seen("crete", "baltic"), crossed);
        }
    }
}
