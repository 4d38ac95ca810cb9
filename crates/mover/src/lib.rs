//! How bulk bytes move between those who hold and those who want them.
//!
//! | module | holds |
//! |---|---|
//! | [`frames`] | the frames of a stream and their limits |
//! | [`encode`] | frames to bytes, without copying payloads |
//! | [`decode`] | bytes to frames, every rule of the format checked |
//! | [`held`] | which bytes of a known version a site has, and the restart marker that remembers it |
//! | [`received`] | which groups of a content have arrived, and the restart marker that remembers it |
//! | [`tuning`] | how many connections a path takes |
//!
//! `docs/design/frames.md` is the format's text.

pub mod decode;
pub mod encode;
pub mod frames;
pub mod held;
pub mod received;
pub mod tuning;

pub use decode::Decoder;
pub use encode::Encoder;
pub use frames::{DataFrame, Frame, FrameError};
pub use held::Held;
pub use received::ReceivedGroups;
pub use tuning::Streams;
