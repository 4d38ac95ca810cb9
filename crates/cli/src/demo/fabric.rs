//! The three sites of the demo and the emulated network between them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use percale_client::Client;
use serde::{Deserialize, Serialize};

use super::CatalogEngine;
use super::folder::Folder;
use super::network::{LinkOptions, Network};
use super::owner;
use super::ports;
use super::postgres::Postgres;
use super::site::{Settings, Site};

/// The names of the sites. The last one only dials out.
pub const NAMES: [&str; 3] = ["alps", "baltic", "coast"];
/// The first site, where the demo's space is at home.
pub const ALPS: usize = 0;
/// The second.
pub const BALTIC: usize = 1;
/// The one that nobody can dial.
pub const COAST: usize = 2;

const USUAL_PORT: u16 = 8787;
/// Within this all sites must have reached each other.
const JOIN_DEADLINE: Duration = Duration::from_secs(30);
/// How often something that is waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The sites, running.
pub struct Fabric {
    /// What lies between them.
    pub network: Network,
    /// In the order of [`NAMES`].
    pub sites: Vec<Site>,
    /// A client of each, as its administrator.
    pub clients: Vec<Client>,
    /// The server of their catalogs, if it is PostgreSQL.
    pub postgres: Option<Postgres>,
}

/// Where the sites are, and what holds their catalogs: kept from run to run, since they know each other and their spaces by
/// it.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// What holds the catalogs.
    catalog: CatalogEngine,
    /// Where each site listens.
    sites: Vec<u16>,
    /// Where each is reached through the emulated network.
    links: Vec<u16>,
}

impl Fabric {
    /// Starts everything. `port` is that of the first site.
    ///
    /// # Errors
    /// A site does not serve, a port is taken, or what an earlier run left does not fit. `NotInstalled` if there is no
    /// PostgreSQL and it is wanted.
    pub async fn start(
        folder: &Folder,
        port: Option<u16>,
        link: LinkOptions,
        catalog: CatalogEngine,
    ) -> anyhow::Result<Self> {
        let kept = Kept::choose(folder, port, catalog)?;
        let postgres = match catalog {
            CatalogEngine::Sqlite => None,
            CatalogEngine::Postgres => Some(Postgres::start(folder, kept.another_port()?).await?),
        };
        let pids: Vec<Arc<AtomicU32>> = NAMES.iter().map(|_| Arc::default()).collect();
        let known = pids.clone();
        let who_dials = move |far: SocketAddr, near: SocketAddr| {
            let pids: Vec<u32> = known.iter().map(|pid| pid.load(Ordering::Relaxed)).collect();
            let found = owner::find(pids.iter().copied().filter(|pid| *pid != 0), far, near)?;
            pids.iter().position(|pid| *pid == found)
        };
        let targets: Vec<SocketAddr> =
            kept.sites.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let network = Network::start(link, &kept.links, &targets, Box::new(who_dials)).await?;
        fs::write(folder.kept(), serde_json::to_vec_pretty(&kept)?)
            .context("cannot note where the sites are")?;

        let mut starting = Vec::new();
        for (number, pid) in pids.into_iter().enumerate() {
            let name = NAMES[number];
            let url = format!("https://{}", network.address(number));
            let settings = Settings {
                name,
                port: kept.sites[number],
                url: (number != COAST).then_some(url),
                catalog_url: postgres.as_ref().map(|server| server.url(name)),
            };
            starting.push(Site::start(settings, folder.site(name)?, pid));
        }
        let sites = try_join_all(starting).await?;
        let clients = sites.iter().map(Site::client).collect::<anyhow::Result<_>>()?;
        Ok(Self { network, sites, clients, postgres })
    }

    /// Joins the sites that have not joined yet, and waits until each reaches the others.
    ///
    /// # Errors
    /// A site refuses, or is not reached in time.
    pub async fn join(&self) -> anyhow::Result<()> {
        let alps = &self.clients[ALPS];
        for (name, client) in NAMES.iter().zip(&self.clients).skip(1) {
            if alps.all_sites().await?.iter().all(|site| site.member.name != *name) {
                let invitation = alps.invite_site(None).await?.invitation;
                client.join_site(&invitation).await.with_context(|| format!("{name} cannot join"))?;
            }
        }
        for (name, client) in NAMES.iter().zip(&self.clients) {
            let reaches_all = async || {
                let sites = client.all_sites().await?;
                Ok(sites.len() == NAMES.len() && sites.iter().all(|site| site.route != "unreachable"))
            };
            eventually(&format!("{name} to reach the others"), JOIN_DEADLINE, reaches_all).await?;
        }
        Ok(())
    }

    /// Asks all sites to end, and waits.
    ///
    /// # Errors
    /// One does not end in time, or not well.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let ended = futures::future::join_all(self.sites.iter_mut().map(Site::stop)).await;
        ended.into_iter().collect::<anyhow::Result<()>>()?;
        match self.postgres.take() {
            Some(server) => server.stop().await,
            None => Ok(()),
        }
    }
}

/// Waits until something is so.
///
/// # Errors
/// It cannot be told, or is not so in time.
pub async fn eventually(
    what: &str,
    within: Duration,
    mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let began = std::time::Instant::now();
    while !is_so().await? {
        ensure!(began.elapsed() < within, "waited {} s for {what}", within.as_secs());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

impl Kept {
    /// Chooses a free port that is none of these, some of which nobody listens on yet.
    fn another_port(&self) -> anyhow::Result<u16> {
        let free = ports::free().filter_map(|listener| Some(listener.local_addr().ok()?.port()));
        let mut others = free.filter(|port| !self.sites.contains(port) && !self.links.contains(port));
        others.next().context("cannot find a free port")
    }

    /// Takes that of an earlier run, or chooses free ports.
    fn choose(folder: &Folder, wanted: Option<u16>, catalog: CatalogEngine) -> anyhow::Result<Self> {
        let file = folder.kept();
        if let Ok(text) = fs::read(&file) {
            let kept: Self =
                serde_json::from_slice(&text).with_context(|| format!("cannot read {}", file.display()))?;
            ensure!(
                kept.sites.len() == NAMES.len() && kept.links.len() == NAMES.len(),
                "{} is not about {} sites",
                file.display(),
                NAMES.len()
            );
            ensure!(
                kept.catalog == catalog,
                "the sites that were kept have their catalogs in {:?}; choose that with --catalog, or leave --keep out",
                kept.catalog
            );
            ensure!(
                wanted.is_none_or(|wanted| wanted == kept.sites[ALPS]),
                "the sites that were kept know the first one by port {}; leave --port or --keep out",
                kept.sites[ALPS]
            );
            return Ok(kept);
        }
        let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let mut free = ports::free();
        let mut next = || free.next().context("cannot find a free port");
        let alps = match wanted {
            Some(port) => bind(port).with_context(|| format!("cannot listen on port {port}"))?,
            None => bind(USUAL_PORT).or_else(|_| next())?,
        };
        // Held until all are chosen, so that no two are the same.
        let mut held = vec![alps];
        for _ in 1..2 * NAMES.len() {
            held.push(next()?);
        }
        let mut ports =
            held.iter().map(|held| Ok(held.local_addr()?.port())).collect::<anyhow::Result<Vec<_>>>()?;
        let links = ports.split_off(NAMES.len());
        Ok(Self { catalog, sites: ports, links })
    }
}
