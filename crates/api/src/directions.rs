//! Which of two sites can dial the other.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Between sites: asks a member to dial the site that asks, at the URLs that the roster has for it and at no others; or, over
/// such a connection, asks that site to say the nonce again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// 32 hexadecimal digits, new for each question.
    pub nonce: String,
}

/// An attempt to dial one URL of a site, on a connection of its own. The site proves itself with its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Dialled {
    /// The URL.
    pub url: String,
    /// Why no answer of that site came; absent if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Between sites: what came of dialling the site that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialAnswer {
    /// One for each of its URLs; none if it is known to only dial out.
    pub dialled: Vec<Dialled>,
}

/// The ways between the site that answers and another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Direction {
    /// The other site's name.
    pub site: String,
    /// What came of dialling it; empty if it only dials out.
    pub outgoing: Vec<Dialled>,
    /// What came of it when it dialled this site; empty if this site only dials out. Absent if it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<Vec<Dialled>>,
    /// Why it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// How far its clock is ahead of this site's, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<i64>,
}

/// The ways between the site that answers and all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Directions {
    /// The name of the site that answers.
    pub site: String,
    /// Where it says that it can be dialled; empty if it only dials out.
    pub urls: Vec<String>,
    /// The others, by name.
    pub items: Vec<Direction>,
    /// Whether each other site that could be asked was refused a connection by every URL of this one.
    pub is_unreachable: bool,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Tells whether a site answered at one of its URLs.
pub fn is_reached(dialled: &[Dialled]) -> bool {
    dialled.iter().any(|one| one.fault.is_none())
}

impl Directions {
    /// Draws the conclusion from what came of dialling.
    pub fn new(site: String, urls: Vec<String>, mut items: Vec<Direction>) -> Self {
        items.sort_by(|a, b| a.site.cmp(&b.site));
        let asked = || items.iter().filter_map(|item| item.incoming.as_deref());
        let is_unreachable = !urls.is_empty() && asked().next().is_some() && !asked().any(is_reached);
        let shut = items.iter().filter(|item| item.incoming.as_deref().is_some_and(|all| !is_reached(all)));
        let shut: Vec<&str> = shut.map(|item| item.site.as_str()).collect();
        let remedy = if urls.is_empty() || shut.is_empty() {
            None
        } else if is_unreachable {
            Some(format!(
                "No other site can dial {} at {}. Set federation.outgoing_only = true in its configuration and start it again; or let \
                 others in, and set federation.urls to where they reach it.",
                site,
                urls.join(", ")
            ))
        } else {
            Some(format!(
                "Let {} in at {}, or name an address in federation.urls that they reach as well.",
                shut.join(", "),
                urls.join(", ")
            ))
        };
        Self { site, urls, items, is_unreachable, remedy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(site: &str, incoming: Option<bool>) -> Direction {
        let dialled = |is_ok: bool| {
            let fault = (!is_ok).then(|| "refused".to_owned());
            vec![Dialled { url: "https://alps:1".into(), fault }]
        };
        let incoming = incoming.map(dialled);
        Direction { site: site.into(), outgoing: Vec::new(), incoming, fault: None, clock_ms: None }
    }

    #[test]
    fn the_remedy_is_that_of_what_was_found() {
        let conclude = |urls: &[&str], items: &[(&str, Option<bool>)]| {
            let items = items.iter().map(|(site, incoming)| direction(site, *incoming)).collect();
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            Directions::new("alps".into(), urls, items)
        };
        let url = ["https://alps:1"];
        let found = conclude(&url, &[("coast", Some(false)), ("baltic", Some(false)), ("delta", None)]);
        assert!(found.is_unreachable && found.remedy.unwrap().contains("outgoing_only = true"));
        assert_eq!(found.items[0].site, "baltic");
        let found = conclude(&url, &[("baltic", Some(true)), ("coast", Some(false))]);
        let remedy = found.remedy.unwrap();
        assert!(!found.is_unreachable && remedy.contains("coast") && !remedy.contains("baltic"), "{remedy}");
        for (urls, items) in [
            (&url[..], &[("baltic", Some(true))][..]),
            // Nobody could be asked: nothing is known.
            (&url[..], &[("baltic", None)][..]),
            (&[][..], &[("baltic", Some(false))][..]),
            (&url[..], &[][..]),
        ] {
            let found = conclude(urls, items);
            assert!(!found.is_unreachable && found.remedy.is_none(), "{found:?}");
        }
    }
}
