//! The servers of this site, which may be several over one catalog (`docs/design/federation.md`, "Servers of a site").
//!
//! Each says in its lease where it can be reached. The site's line of the roster names what all of them say, so that other
//! sites find another one if one of them is away.

use percale_catalog::LeaseKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Result;
use crate::fabric::Fabric;
use crate::roster::MAX_URLS;

/// What a server keeps with its lease.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    v: u16,
    /// Where it can be reached by other sites.
    #[serde(default)]
    urls: Vec<String>,
}

/// Returns what a server that is reached at these URLs keeps with its lease.
pub fn lease_body(urls: &[String]) -> Value {
    serde_json::json!(Body { v: 1, urls: urls.to_vec() })
}

/// Returns where the servers of this site are reached, the oldest first. What only this one says, if none holds a lease.
pub(crate) async fn urls(fabric: &Fabric) -> Result<Vec<String>> {
    let now = fabric.catalog().now().await?;
    let mut urls: Vec<String> = Vec::new();
    for lease in fabric.catalog().leases(LeaseKind::Server).await? {
        if lease.expires <= now {
            continue;
        }
        // A server of another release may keep something else; it is reached through the others.
        let Ok(body) = serde_json::from_value::<Body>(lease.body) else { continue };
        for url in body.urls {
            if !urls.contains(&url) && urls.len() < MAX_URLS {
                urls.push(url);
            }
        }
    }
    Ok(if urls.is_empty() { fabric.own().urls.clone() } else { urls })
}
