//! Whole objects that several streams of one reader send together.

use futures::StreamExt as _;
use futures::stream::FuturesOrdered;
use percale_api::away::Follow;
use percale_api::uploads::PullItem;
use percale_core::tree::GROUP_SIZE;
use percale_mover::Queue;
use percale_mover::frames::MAX_ITEMS_INFO_LEN;

use super::{Asker, Fetched, Gone, Sending, ToFetch, fetch, find_away, open_all, send_one};
use crate::AppState;
use crate::publish::MAX_BATCH;
use crate::reading::{READS, TOGETHER};
use crate::traffic::ToSend;

/// Bytes of objects that are read ahead of the network: no other stream sends them any more.
const AHEAD: u64 = 2 * GROUP_SIZE;
/// What is left for a stream to be helped with it: less is not worth looking the objects up again.
const HELP_FROM: u64 = 256 << 10;

/// Sends what this stream was asked for, then half of what another one has left, as long as there is one.
pub(super) async fn send(
    app: &AppState,
    asker: &Asker,
    follow: Option<&Follow>,
    items: Vec<PullItem>,
    queue: &Queue<ToSend>,
    out: &mut Sending,
) -> Result<(), Gone> {
    let aboard = asker.line(out).map(|line| queue.board(line));
    let mut items = items.into_iter();
    let mut fetched = FuturesOrdered::new();
    let mut ahead = 0;
    loop {
        while fetched.is_empty() || (fetched.len() < READS && ahead < AHEAD) {
            let (mut batch, mut paths, mut bytes) = (Vec::new(), Vec::new(), 0);
            while batch.len() < TOGETHER.0 && bytes < TOGETHER.1 {
                let Some(((PullItem { path, .. }, opened), size)) = queue.pop() else { break };
                bytes += size;
                paths.push(path);
                batch.push(ToFetch { ranges: None, opened, away: None });
            }
            if batch.is_empty() {
                let mut next: Vec<_> = items.by_ref().take(MAX_BATCH).collect();
                // What another stream has left is looked up for whoever asks over this one. All that a stream describes is bounded.
                if next.is_empty() && out.encoder.items_info_len() < MAX_ITEMS_INFO_LEN / 4 {
                    next = queue.help(HELP_FROM, MAX_BATCH).into_iter().map(|(item, _)| item).collect();
                }
                if next.is_empty() {
                    break;
                }
                let opened = open_all(app, &asker.reading, &next).await;
                let places = find_away(app, asker, follow, &opened, out).await;
                let mut here: Vec<(ToSend, u64)> = Vec::with_capacity(next.len());
                for ((item, opened), away) in next.into_iter().zip(opened).zip(places) {
                    match (opened, away) {
                        (Ok(version), Some(away)) => {
                            send_one(app, asker, &item.path, Ok(Fetched::Away(version, away)), out).await?;
                        }
                        (opened, _) => {
                            let bytes = opened.as_ref().map_or(0, |version| version.size.0);
                            here.push(((item, opened), bytes));
                        }
                    }
                }
                queue.extend(here);
                continue;
            }
            ahead += bytes;
            fetched.push_back(async move { (paths, bytes, fetch(app, asker, batch).await) });
        }
        let Some((paths, bytes, batch)) = fetched.next().await else { break };
        for (path, one) in paths.iter().zip(batch) {
            let moved = if let Ok(Fetched::Whole(_, bytes)) = &one { bytes.len() } else { 0 };
            send_one(app, asker, path, one, out).await?;
            if let Some(aboard) = &aboard {
                aboard.moved(moved as u64);
            }
        }
        ahead -= bytes;
    }
    out.encoder.end();
    out.send().await
}
