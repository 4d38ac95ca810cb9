//! What a server left in the middle is ended by whoever comes next.

use std::collections::BTreeMap;

use percale_api::peer::Publish;
use percale_catalog::{Arrival, ArrivalBody, ArrivalEnd, ToldArrival};
use percale_core::ErrorCode;
use percale_core::access::Caller;
use percale_core::ids::SiteId;
use percale_federation::Acting;
use percale_federation::tell::{Told, tell_copies};

use super::Abroad;
use crate::error::Result;

/// Arrivals in one step of tidying up.
const STEP: usize = 1000;

impl Abroad {
    /// Ends what this server began and nobody asks for any more: publications are made impossible at their homes, copies are
    /// told to them.
    ///
    /// # Errors
    /// Those of the catalog. A home that cannot be reached is asked the next time.
    pub async fn tidy(&self) -> Result<()> {
        let holder = self.lease.current()?;
        let mut after = None;
        loop {
            let arrivals = self.catalog.written_arrivals(STEP, after).await?;
            let Some(last) = arrivals.last() else { return Ok(()) };
            after = Some(last.id);
            let left =
                arrivals.into_iter().filter(|arrival| arrival.told.is_none() && !self.is_going(arrival.id));
            let left: Vec<Arrival> = left.collect();
            // What another server or an upload holds is theirs; of the dead nobody holds anything.
            let ids = left.iter().map(|arrival| arrival.id).collect();
            let adopted = self.catalog.adopt_arrivals(ids, holder.lease, holder.fence).await;
            let mut homes: BTreeMap<Option<SiteId>, Vec<Arrival>> = BTreeMap::new();
            for (arrival, adopted) in left.into_iter().zip(adopted) {
                if adopted.is_ok() && !self.is_going(arrival.id) {
                    homes.entry(arrival.home).or_default().push(arrival);
                }
            }
            for (home, arrivals) in homes {
                if let Err(error) = self.tidy_at(home, arrivals).await {
                    tracing::debug!(?home, %error, "cannot end arrivals yet");
                }
            }
        }
    }

    /// Ends arrivals of one home, which is asked first.
    ///
    /// # Errors
    /// Those of the catalog, and of the home.
    pub(super) async fn tidy_at(&self, home: Option<SiteId>, arrivals: Vec<Arrival>) -> Result<()> {
        let is_publication = |arrival: &Arrival| matches!(arrival.body, ArrivalBody::Publication(_));
        let (publications, copies): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(is_publication);
        let ids = |arrivals: &[Arrival]| arrivals.iter().map(|arrival| arrival.id).collect::<Vec<_>>();
        if home.is_none() {
            self.tell_own(&copies).await;
            self.end(ids(&publications), ArrivalEnd::Garbage).await;
            return Ok(());
        }
        // Whoever orders the space now cannot be asked: nothing can come of them any more.
        let Some(home) = home.filter(|home| self.fabric.member(*home).is_ok()) else {
            self.end(ids(&publications), ArrivalEnd::Garbage).await;
            self.end(ids(&copies), ArrivalEnd::Garbage).await;
            return Ok(());
        };
        if !copies.is_empty() {
            let answers = tell_copies(&self.fabric, home, &Acting::Site, &copies).await?;
            let told =
                copies.iter().zip(answers).filter_map(|(arrival, answer)| match (arrival.version, answer) {
                    (Some(version), Some(Told::Noted(position))) => {
                        Some(ToldArrival { id: arrival.id, version, position })
                    }
                    _ => None,
                });
            self.note(told.collect()).await?;
        }
        if publications.is_empty() {
            return Ok(());
        }
        let client = self.fabric.client(home, &Acting::Site)?;
        let abandoned = publications.iter().map(|arrival| arrival.id.0).collect();
        let publish = Publish { caller: Caller::anonymous(), items: Vec::new(), abandoned };
        let answer = match client.peer_publish(&publish).await {
            Ok(answer) => answer,
            // One that is too old for the home to say anything about must not hold the others up.
            Err(error) if error.code() == ErrorCode::InvalidRequest && publications.len() > 1 => {
                for one in publications {
                    if let Err(error) = Box::pin(self.tidy_at(Some(home), vec![one])).await {
                        tracing::warn!(%error, "an arrival cannot be given up; its bytes stay");
                    }
                }
                return Ok(());
            }
            Err(error) => return Err(percale_federation::Error::from(error).into()),
        };
        let (mut told, mut given_up) = (Vec::new(), Vec::new());
        for (arrival, published) in publications.iter().zip(answer.abandoned) {
            match published {
                // It was committed before it was given up.
                Some(published) => {
                    let (version, position) = (published.version, published.position);
                    told.push(ToldArrival { id: arrival.id, version, position });
                }
                None => given_up.push(arrival.id),
            }
        }
        self.note(told).await?;
        self.end(given_up, ArrivalEnd::Garbage).await;
        Ok(())
    }

    async fn note(&self, told: Vec<ToldArrival>) -> Result<()> {
        Ok(self.catalog.note_told(told).await.into_iter().collect::<percale_catalog::Result<()>>()?)
    }
}
