//! Where a client is sent for bytes that the site it asked does not have (`docs/design/federation.md`).

use std::fmt;

use percale_core::Position;
use percale_core::ids::SiteId;
use serde::{Deserialize, Serialize};

/// A place to read from: what an AWAY frame says where the place comes up for the first time.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The site.
    pub site: SiteId,
    /// Its name.
    pub name: String,
    /// Where it is reached, such as `https://data.example.org`.
    pub url: String,
    /// Its public keys, hexadecimal, one of which it proves to hold.
    pub keys: Vec<String>,
    /// What opens the bytes there, for `Percale-Ticket`.
    pub ticket: String,
    /// For how long, in seconds. A body that began may last longer.
    pub life_s: u64,
    /// What that site must have seen to know of the bytes, for `Percale-Position`.
    pub position: Position,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, name, url, keys, life_s, position, ticket: _ } = self;
        f.debug_struct("Place")
            .field("site", site)
            .field("name", name)
            .field("url", url)
            .field("keys", keys)
            .field("ticket", &"<redacted>")
            .field("life_s", life_s)
            .field("position", position)
            .finish()
    }
}

/// What `Percale-Redirect` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follow {
    /// Names of the sites to which the client does not go.
    pub not: Vec<String>,
}

impl Follow {
    /// Reads the field; nothing if the client does not follow, or says something that is not understood.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        if parts.next() != Some("follow") {
            return None;
        }
        let mut not = Vec::new();
        for part in parts {
            let names = part.strip_prefix("not=")?;
            not.extend(names.split(',').map(|name| name.trim().to_owned()));
        }
        Some(Self { not })
    }
}

impl fmt::Display for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("follow")?;
        if self.not.is_empty() { Ok(()) } else { write!(f, "; not={}", self.not.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_round_trips_and_what_is_unclear_means_no() {
        for not in [vec![], vec!["alps"], vec!["alps", "baltic"]] {
            let follow = Follow { not: not.into_iter().map(str::to_owned).collect() };
            assert_eq!(Follow::parse(&follow.to_string()), Some(follow));
        }
        assert_eq!(Follow::parse("follow;not=a , b").unwrap().not, ["a", "b"]);
        for text in ["", "no", "Follow!", "follow; only=alps", "follows"] {
            assert_eq!(Follow::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_ticket_is_not_printed() {
        let space = "0199a2b4-0000-7000-8000-000000000001".parse().unwrap();
        let place = Place {
            site: SiteId::new(),
            name: "baltic".into(),
            url: "https://baltic".into(),
            keys: vec!["00".into()],
            ticket: "secret".into(),
            life_s: 300,
            position: Position { space, term: 1, seq: 2 },
        };
        assert!(!format!("{place:?}").contains("secret"));
        let json = serde_json::to_vec(&place).unwrap();
        assert_eq!(serde_json::from_slice::<Place>(&json).unwrap(), place);
    }
}
