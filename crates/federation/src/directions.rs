//! Finds out which of two sites can dial the other, by dialling.

use std::sync::Arc;
use std::time::Duration;

use percale_api::directions::{Dial, DialAnswer, Dialled, Direction, Directions};
use percale_client::{Client, ClientOptions, RetryPolicy};
use percale_core::{ErrorCode, Timestamp};
use percale_trust::site_client_config;
use tokio::task::JoinSet;

use crate::fabric::{Acting, Fabric};
use crate::{Error, Member, Result, roster};

/// How long one URL is dialled.
const DIAL_WITHIN: Duration = Duration::from_secs(5);
/// How long a member may take for its answer: it dials all URLs at once.
const ASK_WITHIN: Duration = Duration::from_secs(12);
/// Most URLs of one site that are dialled.
const MAX_URLS: usize = 8;

/// Most characters of a reason. It may be in the words of who answered.
const MAX_REASON: usize = 300;

/// Makes a reason fit to be shown in a line.
fn shortened(reason: &str) -> String {
    reason.chars().filter(|char| !char.is_control()).take(MAX_REASON).collect()
}

/// Checks the nonce of a question.
///
/// # Errors
/// `invalid_request`.
pub fn check_nonce(nonce: &str) -> Result<()> {
    match nonce.len() == 32 && nonce.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err(Error::new(ErrorCode::InvalidRequest, "a nonce has 32 hexadecimal digits")),
    }
}

impl Fabric {
    /// Dials a member at each of the URLs that the roster has for it, on new connections, at most 8 and for at most 5 s. It
    /// is reached where a server answers that has the member's key.
    pub async fn dial(&self, member: &Arc<Member>, nonce: &str) -> Vec<Dialled> {
        let mut dials = JoinSet::new();
        let urls = member.urls.iter().filter(|_| member.is_dialable).take(MAX_URLS);
        for (at, url) in urls.enumerate() {
            let (fabric, member, url) = (self.clone(), member.clone(), url.clone());
            let dial = Dial { nonce: nonce.to_owned() };
            dials.spawn(async move {
                let answered = tokio::time::timeout(DIAL_WITHIN, fabric.dial_one(&member, &url, &dial)).await;
                let fault = match answered {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(shortened(&error.to_string())),
                    Err(_) => Some(format!("no answer within {} s", DIAL_WITHIN.as_secs())),
                };
                (at, Dialled { url, fault })
            });
        }
        let mut dialled: Vec<(usize, Dialled)> = dials.join_all().await;
        dialled.sort_by_key(|(at, _)| *at);
        dialled.into_iter().map(|(_, one)| one).collect()
    }

    async fn dial_one(&self, member: &Arc<Member>, url: &str, dial: &Dial) -> Result<()> {
        // None of those that are open: they were made when the way may have been another.
        let mut options = ClientOptions::new(url);
        let keys = roster::keys_of(member, Timestamp::now());
        options.site_tls = Some(site_client_config(&self.key().certificate, keys)?);
        options.retry = RetryPolicy::never();
        (options.stall_timeout, options.connect_timeout) = (DIAL_WITHIN, DIAL_WITHIN);
        let client = Client::new(options)?.with_headers(self.headers(member, &Acting::Site, None, None)?);
        match client.peer_hello(dial).await? {
            said if said == *dial => Ok(()),
            _ => Err(Error::new(ErrorCode::SiteUnavailable, "something answered in place of the site")),
        }
    }

    /// Finds out, with all other members at once, which of the two can dial the other. Takes at most some seconds.
    pub async fn directions(&self) -> Directions {
        let mut looks = JoinSet::new();
        for member in self.others() {
            let fabric = self.clone();
            looks.spawn(async move { fabric.direction(member).await });
        }
        Directions::new(self.own().name.clone(), self.own_urls(), looks.join_all().await)
    }

    async fn direction(&self, member: Arc<Member>) -> Direction {
        let dial = Dial { nonce: uuid::Uuid::new_v4().simple().to_string() };
        let asked = async {
            let client = self.client(member.id, &Acting::Site)?;
            match tokio::time::timeout(ASK_WITHIN, client.peer_dial(&dial)).await {
                Ok(answer) => Ok(answer?),
                Err(_) => {
                    let detail = format!("no answer within {} s", ASK_WITHIN.as_secs());
                    Err(Error::new(ErrorCode::SiteUnavailable, detail))
                }
            }
        };
        let (outgoing, asked): (_, Result<DialAnswer>) = tokio::join!(self.dial(&member, &dial.nonce), asked);
        let (incoming, fault) = match asked {
            Ok(answer) => (Some(self.of_ours(answer)), None),
            Err(error) => (None, Some(shortened(&error.to_string()))),
        };
        let clock_ms = self.contact(member.id).clock_us.map(|offset| offset / 1000);
        Direction { site: member.name.clone(), outgoing, incoming, fault, clock_ms }
    }

    /// Returns where the roster says that this site can be dialled.
    fn own_urls(&self) -> Vec<String> {
        self.roster().get(self.own().id).map(|own| own.urls.clone()).unwrap_or_default()
    }

    /// Returns what another site says of URLs that this site has; of others it was not asked.
    fn of_ours(&self, answer: DialAnswer) -> Vec<Dialled> {
        let urls = self.own_urls();
        let ours = answer.dialled.into_iter().filter(|one| urls.contains(&one.url)).take(MAX_URLS);
        ours.map(|one| Dialled { fault: one.fault.map(|fault| shortened(&fault)), ..one }).collect()
    }
}
