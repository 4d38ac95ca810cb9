//! How bulk bytes move between those who hold and those who want them.
//!
//! | module | holds |
//! |---|---|
//! | [`frames`] | the frames of a stream and their limits |
//! | [`encode`] | frames to bytes, without copying payloads |
//! | [`decode`] | bytes to frames, every rule of the format checked |
//! | [`authentic`] | the tags of frames that travel without encryption |
//! | [`held`] | which bytes of a known version a site has, and the restart marker that remembers it |
//! | [`received`] | which groups of a content have arrived, and the restart marker that remembers it |
//! | [`tuning`] | how many connections a path takes |
//! | [`meter`] | where the time of a transfer's streams goes |
//! | [`flight`] | how much a long transfer has on its way, once it is known what the line carries |
//! | [`late`] | what is late because the line stands empty, and is asked for again |
//! | [`verdict`] | what holds a transfer up, by what a meter shows |
//! | [`limit`] | holding a flow of bytes down to a speed |
//! | [`share`] | what several streams send of one object for one reader, so that they end together |
//! | [`queues`] | the same of whole objects |
//! | [`parts`] | how objects are cut into what several streams are asked for |
//! | [`slots`] | the streams that all files of a transfer share |
//! | [`schedule`] | speeds by time of day |
//!
//! `docs/design/frames.md` is the format's text.

pub mod authentic;
pub mod decode;
pub mod encode;
pub mod flight;
pub mod frames;
pub mod held;
pub mod late;
pub mod limit;
pub mod meter;
pub mod parts;
pub mod queues;
pub mod received;
pub mod room;
pub mod schedule;
pub mod share;
pub mod slots;
pub mod tuning;
pub mod verdict;

pub use authentic::StreamKey;
pub use decode::Decoder;
pub use encode::Encoder;
pub use flight::{Aboard, Flight, Line};
pub use frames::{DataFrame, Frame, FrameError};
pub use held::Held;
pub use late::Late;
pub use limit::Bucket;
pub use meter::{Meter, Wait};
pub use parts::in_parts;
pub use queues::{Queue, Queues};
pub use received::ReceivedGroups;
pub use room::Room;
pub use schedule::Schedule;
pub use share::Share;
pub use slots::Slots;
pub use tuning::Streams;
pub use verdict::{Bottleneck, Verdict};
