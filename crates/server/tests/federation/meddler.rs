//! Somebody on the way between two sites, who sees what is not encrypted, and alters it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use percale_api::plain::HELLO;
use percale_core::tree::GROUP_SIZE;
use percale_mover::frames::{HASH_LEN, HEADER_LEN, PREAMBLE_AUTHENTIC, TAG_LEN};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The number of a DATA frame's type.
const DATA: u8 = 2;
/// Those behind which a stream has ended.
const ENDS: [u8; 2] = [14, 15];

/// What is done to the next DATA frame of a kind that comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alter {
    /// One bit is flipped, in the item's number, the offset, the length, the hash, the tag, the group.
    Item,
    Offset,
    Length,
    Hash,
    Tag,
    Group,
    /// It does not go on.
    Drop,
    /// It goes on twice.
    Repeat,
    /// The frame behind it goes first.
    Swap,
    /// Its group is that of the frame behind it, as is the hash.
    Replace,
    /// The connection ends in the middle of it.
    Cut,
}

/// What becomes of connections without TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Passing {
    #[default]
    Open,
    /// They come about, and nothing moves on them.
    Silent,
    /// They are closed at once.
    Closed,
}

#[derive(Debug, Default)]
pub struct Seen {
    /// What went without encryption: from who dials, and back.
    pub there: Vec<u8>,
    pub back: Vec<u8>,
    /// Connections without encryption.
    pub connections: usize,
    /// What is done to a group of an object of several, or of one.
    pub alter: Option<(Alter, bool)>,
    pub passing: Passing,
    target: Option<SocketAddr>,
}

/// A port in front of a site's.
pub struct Meddler {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Meddler {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = seen.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(connection(near, shared.clone()));
            }
        });
        Self { address, seen, accepting }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn lead_to(&self, target: SocketAddr) {
        self.seen().target = Some(target);
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Forgets what was seen.
    pub fn forget(&self) {
        let mut seen = self.seen();
        *seen = Seen { target: seen.target, ..Seen::default() };
    }
}

async fn connection(mut near: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut first = [0];
    if !matches!(near.peek(&mut first).await, Ok(1)) {
        return;
    }
    let target = seen.lock().unwrap().target.unwrap();
    if first != [HELLO[0]] {
        let Ok(mut far) = TcpStream::connect(target).await else { return };
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        return;
    }
    let passing = {
        let mut seen = seen.lock().unwrap();
        seen.connections += 1;
        seen.passing
    };
    match passing {
        Passing::Open => {}
        Passing::Silent => return std::future::pending().await,
        Passing::Closed => return,
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut from_near, mut to_near) = near.into_split();
    let (mut from_far, mut to_far) = far.into_split();
    let there = async {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = from_near.read(&mut bytes).await {
            seen.lock().unwrap().there.extend_from_slice(&bytes[..read]);
            to_far.write_all(&bytes[..read]).await?;
        }
        to_far.shutdown().await
    };
    let back = async {
        let mut frames = Frames { from: &mut from_far, seen: &seen, is_begun: false };
        while let Ok(frame) = frames.next().await {
            let is_large = frame.len() > GROUP_SIZE as usize;
            let wanted = |alter: &mut (Alter, bool)| frame[0] == DATA && alter.1 == is_large;
            let alter = seen.lock().unwrap().alter.take_if(wanted).map(|(alter, _)| alter);
            let sent = match alter {
                None => vec![frame],
                Some(alter) => altered(alter, frame, &mut frames).await,
            };
            for frame in sent {
                to_near.write_all(&frame).await?;
            }
            if alter == Some(Alter::Cut) {
                break;
            }
        }
        to_near.shutdown().await
    };
    // Whichever end closes, both do.
    tokio::select! {
        _ = there => {}
        _ = back => {}
    }
}

async fn altered(alter: Alter, mut frame: Vec<u8>, frames: &mut Frames<'_>) -> Vec<Vec<u8>> {
    let mut flip = |at: usize| frame[at] ^= 0x04;
    match alter {
        Alter::Item => flip(4),
        Alter::Offset => flip(10),
        Alter::Length => flip(16),
        Alter::Hash => flip(HEADER_LEN),
        Alter::Tag => flip(HEADER_LEN + HASH_LEN),
        Alter::Group => flip(HEADER_LEN + HASH_LEN + TAG_LEN + 7),
        Alter::Drop => return Vec::new(),
        Alter::Repeat => return vec![frame.clone(), frame],
        Alter::Swap => {
            let Ok(next) = frames.next().await else { return vec![frame] };
            return vec![next, frame];
        }
        Alter::Replace => {
            let Ok(next) = frames.next().await else { return vec![frame] };
            let replaced = [&frame[..HEADER_LEN], &next[HEADER_LEN..]].concat();
            return vec![replaced, next];
        }
        Alter::Cut => frame.truncate(frame.len() / 2),
    }
    vec![frame]
}

/// Reads stream after stream, frame by frame: the first with the preamble in front, which is noted and passed on alone.
struct Frames<'a> {
    from: &'a mut tokio::net::tcp::OwnedReadHalf,
    seen: &'a Mutex<Seen>,
    is_begun: bool,
}

impl Frames<'_> {
    async fn next(&mut self) -> std::io::Result<Vec<u8>> {
        let frame = self.read().await?;
        self.seen.lock().unwrap().back.extend_from_slice(&frame);
        Ok(frame)
    }

    async fn read(&mut self) -> std::io::Result<Vec<u8>> {
        if !self.is_begun {
            let mut preamble = vec![0; PREAMBLE_AUTHENTIC.len()];
            self.from.read_exact(&mut preamble).await?;
            assert_eq!(preamble, PREAMBLE_AUTHENTIC);
            self.is_begun = true;
            return Ok(preamble);
        }
        let mut frame = vec![0; HEADER_LEN];
        self.from.read_exact(&mut frame).await?;
        let len = u32::from_le_bytes(frame[16..HEADER_LEN].try_into().unwrap()) as usize;
        frame.resize(HEADER_LEN + len + TAG_LEN, 0);
        self.from.read_exact(&mut frame[HEADER_LEN..]).await?;
        self.is_begun = !ENDS.contains(&frame[0]);
        Ok(frame)
    }
}
