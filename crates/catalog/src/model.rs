//! What goes in and out of the catalog.

mod arrival;
mod attribute;
mod entry;
mod follow;
pub(crate) mod glob;
mod journal;
mod lease;
mod pattern;
mod peer;
mod publish;
mod register;
mod replica;
mod rules;
mod site;
mod task;

pub use arrival::*;
pub use attribute::*;
pub use entry::*;
pub use follow::*;
pub use journal::*;
pub use lease::*;
pub use pattern::*;
pub use peer::*;
pub use publish::*;
pub use register::*;
pub use replica::*;
pub use rules::*;
pub use site::*;
pub use task::*;

/// One part of a longer answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items, in a stable order.
    pub items: Vec<T>,
    /// Where the next page begins: an opaque text for the `after` of the next call. Nothing after the last page.
    pub next: Option<String>,
    /// The position of the space when the page was read, where the page is of one space.
    pub position: Option<percale_core::Position>,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// Returns the word that is stored and sent.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = percale_core::state::UnknownState;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok($name::$variant),)*
                    _ => Err(percale_core::state::UnknownState(text.chars().take(40).collect())),
                }
            }
        }
    };
}
pub(crate) use words;
