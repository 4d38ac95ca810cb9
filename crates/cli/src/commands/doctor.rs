//! `doctor`: what a support person would ask for.

use std::time::{Duration, Instant};

use clap::Args;
use percale_api::directions::{Dialled, Direction, is_reached};
use percale_client::Client;
use percale_core::{ErrorCode, Timestamp};
use percale_mount::{Ability, Access, Reason, StoreAccess};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;

use crate::config::{ConfigFile, Effective};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{duration, size, time};

/// Difference of the clocks from which on tokens may be refused.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// A token that ends within this is worth a word.
const TOKEN_ENDS_SOON: Duration = Duration::from_secs(24 * 3600);
/// Open files that a transfer with many streams and a server on the same computer want.
const OPEN_FILES: u64 = 4096;
/// Less free space than this makes uploads and downloads fail soon.
const LITTLE_SPACE: u64 = 1 << 30;

/// `percale doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
With an administrator's token the site also dials each other site of its fabric and is dialled by it, which says which ways are open,
and how a mount on this host would read and write is said store by store.
Exit code 0 if nothing is wrong; warnings do not count.

Examples:
  percale doctor
  percale doctor --profile work
  percale doctor --json | jq -r 'select(.result != \"ok\") | .what'")]
pub struct DoctorArgs {}

/// How a look ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Warning,
    Wrong,
}

/// One look.
#[derive(Debug, Serialize)]
struct Look {
    what: &'static str,
    result: Verdict,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Default)]
struct Looks(Vec<Look>);

impl Looks {
    fn add(&mut self, what: &'static str, result: Verdict, detail: impl Into<String>) {
        self.0.push(Look { what, result, detail: detail.into(), hint: None });
    }

    fn hint(
        &mut self,
        what: &'static str,
        result: Verdict,
        detail: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.0.push(Look { what, result, detail: detail.into(), hint: Some(hint.into()) });
    }

    fn failure(&mut self, what: &'static str, failure: &Failure) {
        self.hint(what, Verdict::Wrong, failure.to_string(), failure.hint());
    }
}

/// Looks at everything.
pub async fn run(_args: DoctorArgs, context: &Context) -> Result {
    let mut looks = Looks::default();
    looks.add(
        "program",
        Verdict::Ok,
        format!("percale {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH),
    );
    let mut logged_in = None;
    match ConfigFile::load().and_then(|file| file.effective(&context.flags)) {
        Ok(effective) => {
            let text = format!(
                "profile {}, {} ({})",
                effective.profile.value, effective.url.value, effective.url.origin
            );
            looks.add("configuration", Verdict::Ok, text);
            match context.client() {
                Ok(client) => {
                    if site(&client, &effective, &mut looks).await {
                        logged_in = Some(client);
                    }
                }
                Err(failure) => looks.failure("configuration", &failure),
            }
        }
        Err(failure) => looks.failure("configuration", &failure),
    }
    computer(&mut looks);
    mounting(logged_in.as_ref(), &mut looks).await;
    tell(&looks.0, context)
}

/// Looks at the way to the site and at the site. Tells whether somebody is logged in there.
async fn site(client: &Client, effective: &Effective, looks: &mut Looks) -> bool {
    let began = Instant::now();
    let (version, date) = match client.version().await {
        Ok(answer) => answer,
        Err(error) => {
            looks.failure("connection", &error.into());
            return false;
        }
    };
    let first = began.elapsed();
    let began = Instant::now();
    let again = client.version().await.map(|_| began.elapsed());
    let round = again.map_or_else(|_| String::new(), |again| format!(", then {} ms", again.as_millis()));
    let scheme = if client.url().scheme() == "https" { "TLS" } else { "no encryption" };
    looks.add(
        "connection",
        Verdict::Ok,
        format!("{scheme}, first answer after {} ms{round}", first.as_millis()),
    );
    let text =
        format!("server {}, catalogue {}, layout {}", version.version, version.catalog, version.schema);
    match version.version == env!("CARGO_PKG_VERSION") {
        true => looks.add("version", Verdict::Ok, text),
        false => {
            looks.hint("version", Verdict::Warning, text, "Use the same release on both sides where you can.")
        }
    }
    if let Some(date) = date {
        let now = Timestamp::now();
        // The field has whole seconds.
        let skew = now.since(date).max(date.since(now)).saturating_sub(Duration::from_secs(1));
        let text = format!("{} apart from the site's", duration(skew));
        match skew < CLOCK_SKEW {
            true => looks.add("clock", Verdict::Ok, text),
            false => looks.hint(
                "clock",
                Verdict::Wrong,
                text,
                "Set this computer's clock (NTP): tokens depend on it.",
            ),
        }
    }
    match client.readiness().await {
        Ok(readiness) if readiness.ready => {
            let checks: Vec<_> = readiness.checks.iter().map(|check| check.name.as_str()).collect();
            looks.add("site", Verdict::Ok, format!("ready ({})", checks.join(", ")));
        }
        Ok(readiness) => {
            for check in readiness.checks.iter().filter(|check| !check.ok) {
                looks.add("site", Verdict::Wrong, format!("{}: {}", check.name, check.detail));
            }
        }
        Err(error) => looks.failure("site", &error.into()),
    }
    let is_logged_in = token(client, effective, looks).await;
    fabric(client, looks).await;
    if let Ok(stores) = client.all_stores().await {
        for store in stores {
            let name = format!("{} ({})", store.name, store.connector);
            match (store.free_bytes, store.total_bytes) {
                (Some(free), total) => {
                    let of = total.map_or(String::new(), |total| format!(" of {}", size(total)));
                    let verdict = if free < LITTLE_SPACE { Verdict::Warning } else { Verdict::Ok };
                    looks.add("store", verdict, format!("{name}: {} free{of}", size(free)));
                }
                (None, _) => looks.add("store", Verdict::Ok, name),
            }
        }
    }
    is_logged_in
}

/// Looks at the ways between the site and the others of its fabric.
async fn fabric(client: &Client, looks: &mut Looks) {
    const WHAT: &str = "ways";
    let is_alone = client.all_sites().await.is_ok_and(|sites| sites.iter().all(|site| site.is_self));
    if is_alone {
        return;
    }
    let found = match client.directions().await {
        Ok(found) => found,
        Err(error) if error.code() == ErrorCode::Forbidden || error.code() == ErrorCode::Unauthenticated => {
            let text = "which of the sites can dial which was not looked at";
            return looks.hint(
                WHAT,
                Verdict::Ok,
                text,
                "An administrator of the site can have that looked at.",
            );
        }
        Err(error) => return looks.failure(WHAT, &error.into()),
    };
    for Direction { site, outgoing, incoming, fault, clock_ms } in &found.items {
        let way = |from: &str, to: &str, dialled: &[Dialled]| {
            let faults: Vec<String> = dialled
                .iter()
                .filter_map(|one| Some(format!("{}: {}", one.url, one.fault.as_ref()?)))
                .collect();
            match dialled.is_empty() {
                true => (Verdict::Ok, format!("{from} -> {to}: {to} only dials out")),
                false if !is_reached(dialled) => {
                    (Verdict::Warning, format!("{from} -> {to}: no connection ({})", faults.join("; ")))
                }
                false if !faults.is_empty() => (
                    Verdict::Warning,
                    format!("{from} -> {to}: open, but not everywhere ({})", faults.join("; ")),
                ),
                false => (Verdict::Ok, format!("{from} -> {to}: open")),
            }
        };
        let (verdict, text) = way(&found.site, site, outgoing);
        looks.add(WHAT, verdict, text);
        match (incoming, fault) {
            (Some(incoming), _) => {
                let (verdict, text) = way(site, &found.site, incoming);
                looks.add(WHAT, verdict, text);
            }
            (None, fault) => {
                let why = fault.as_deref().unwrap_or("it does not say why");
                let text = format!("{site} -> {}: {site} could not be asked ({why})", found.site);
                looks.add(WHAT, Verdict::Warning, text);
            }
        }
        if let Some(apart) = clock_ms.map(|ahead| Duration::from_millis(ahead.unsigned_abs()))
            && apart >= CLOCK_SKEW
        {
            let text = format!("{site}'s clock is {} apart from {}'s", duration(apart), found.site);
            looks.hint(
                "clock",
                Verdict::Warning,
                text,
                "Set the clocks of both sites (NTP); 15 minutes are the most.",
            );
        }
    }
    if let Some(remedy) = found.remedy {
        let verdict = if found.is_unreachable { Verdict::Wrong } else { Verdict::Warning };
        let text = match found.is_unreachable {
            true => format!("no other site can dial {}", found.site),
            false => format!("not every site can dial {}", found.site),
        };
        looks.hint(WHAT, verdict, text, remedy);
    }
}

/// Looks at the token. Tells whether somebody is logged in by it.
async fn token(client: &Client, effective: &Effective, looks: &mut Looks) -> bool {
    let whoami = match client.whoami().await {
        Ok(whoami) => whoami,
        Err(error) => {
            looks.failure("token", &error.into());
            return false;
        }
    };
    let Some(user) = whoami.user else {
        let text = format!("nobody is logged in ({})", effective.token.origin);
        looks.hint("token", Verdict::Warning, text, "Run `percale login`.");
        return false;
    };
    match whoami.expires {
        Some(expires) => {
            let left = expires.since(Timestamp::now());
            let text = format!("{user}, valid until {} UTC ({} left)", time(expires), duration(left));
            if left < TOKEN_ENDS_SOON {
                looks.hint(
                    "token",
                    Verdict::Warning,
                    text,
                    "It ends soon; a longer job needs one with a longer life.",
                );
            } else {
                looks.add("token", Verdict::Ok, text);
            }
        }
        None => looks.add("token", Verdict::Ok, user.to_string()),
    }
    true
}

/// Looks at this computer.
fn computer(looks: &mut Looks) {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match files >= OPEN_FILES {
        true => looks.add("open files", Verdict::Ok, format!("limit {files}")),
        false => looks.hint(
            "open files",
            Verdict::Warning,
            format!("limit {files}"),
            format!("`ulimit -n {OPEN_FILES}` allows many streams at once."),
        ),
    }
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    match rustix::fs::statvfs(&here) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let verdict = if free < LITTLE_SPACE { Verdict::Warning } else { Verdict::Ok };
            looks.add("disk here", verdict, format!("{} free at {}", size(free), here.display()));
        }
        Err(error) => looks.add("disk here", Verdict::Wrong, format!("cannot ask for free space: {error}")),
    }
    let state = percale_client::put::default_state_dir();
    match state.as_ref().map(std::fs::create_dir_all) {
        Some(Ok(())) => looks.add("resume", Verdict::Ok, "interrupted uploads can be taken up"),
        Some(Err(error)) => looks.hint(
            "resume",
            Verdict::Warning,
            format!("notes for a resume cannot be kept: {error}"),
            "Set XDG_STATE_HOME to a directory that you may write.",
        ),
        None => looks.add("resume", Verdict::Warning, "there is no home directory for notes of a resume"),
    }
}

/// Says how a mount would read and write copies on this computer. Nothing of it is wrong: few want to mount.
async fn mounting(client: Option<&Client>, looks: &mut Looks) {
    const WHAT: &str = "mount";
    let host = match Ability::of_this_host() {
        Ok(host) => host,
        Err(error) => {
            let text = format!(
                "whether the kernel can read and write local copies itself was not found out: {error}"
            );
            return looks.add(WHAT, Verdict::Ok, text);
        }
    };
    match &host {
        Ability::Passthrough => {
            let text = "this host lets the kernel read and write local copies itself, where it can on their file system";
            looks.add(WHAT, Verdict::Ok, text);
        }
        Ability::Daemon(Reason { why, remedy }) => {
            let text = format!("local copies are read and written through the mount's process: {why}");
            looks.hint(WHAT, Verdict::Ok, text, *remedy);
        }
        Ability::No(Reason { why, remedy }) => {
            return looks.hint(WHAT, Verdict::Ok, format!("spaces cannot be mounted: {why}"), *remedy);
        }
        _ => return,
    }
    let Some(client) = client else { return };
    let stores = match percale_mount::stores(client, &host).await {
        Ok(stores) => stores,
        Err(error) if matches!(error.code(), ErrorCode::Forbidden | ErrorCode::Unauthenticated) => {
            let text = "how the copies on each store are read and written was not looked at";
            return looks.hint(
                WHAT,
                Verdict::Ok,
                text,
                "An administrator of the site is told it store by store.",
            );
        }
        Err(error) => {
            let text =
                format!("how the copies on each store are read and written was not found out: {error}");
            return looks.add(WHAT, Verdict::Ok, text);
        }
    };
    for StoreAccess { name, root, access } in stores {
        match access {
            Access::Kernel => {
                looks.add(WHAT, Verdict::Ok, format!("store {name} at {root}: by the kernel"));
            }
            // Why is said above.
            Access::Daemon(_) if host != Ability::Passthrough => {
                looks.add(WHAT, Verdict::Ok, format!("store {name} at {root}: through the mount's process"));
            }
            Access::Daemon(Reason { why, remedy }) => {
                let text = format!("store {name} at {root}: through the mount's process, since {why}");
                looks.hint(WHAT, Verdict::Ok, text, remedy);
            }
            Access::Network(why) => looks.hint(
                WHAT,
                Verdict::Ok,
                format!("store {name}: over the network, since this host does not see it at {root} ({why})"),
                "A host sees a store that it has at the same path as the site's servers, and may read as they do.",
            ),
            _ => {}
        }
    }
}

fn tell(looks: &[Look], context: &Context) -> Result {
    let output = context.output;
    output.list(
        looks,
        &["", "look", "finding"],
        |look| look.what.to_owned(),
        |look| {
            let mark = match look.result {
                Verdict::Ok => "ok",
                Verdict::Warning => "warn",
                Verdict::Wrong => "WRONG",
            };
            let hint = look.hint.as_ref().map_or(String::new(), |hint| format!(" -> {hint}"));
            vec![mark.to_owned(), look.what.to_owned(), format!("{}{hint}", look.detail)]
        },
    )?;
    let wrong = looks.iter().filter(|look| look.result == Verdict::Wrong).count();
    if wrong == 0 {
        return Ok(());
    }
    if output.json {
        output.line(json!({"summary": {"wrong": wrong}}).to_string())?;
    }
    Err(Failure::told(ErrorCode::Internal))
}
