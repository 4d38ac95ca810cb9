//! Sign-in, tokens and grants.

use percale_core::Timestamp;
use percale_core::access::{Permission, Scope, Subject};
use percale_core::ids::TokenId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who the server takes the caller for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhoAmI {
    /// The user, or absent if nobody signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "user:alice")]
    pub user: Option<Subject>,
    /// The groups that the issuer vouches for.
    #[schema(value_type = Vec<String>)]
    pub groups: Vec<Subject>,
    /// The token's restrictions; empty for none.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<Scope>,
    /// When the token ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub expires: Option<Timestamp>,
}

/// Asks for a token of the built-in issuer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The user; the caller if absent. Only an administrator may name another.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "user:alice")]
    pub subject: Option<Subject>,
    /// Groups to vouch for; only by an administrator.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub groups: Vec<Subject>,
    /// Restrictions: `read:/p`, `write:/p`, `manage:/p`, `admin`. Never more than the caller's own.
    #[serde(default)]
    #[schema(value_type = Vec<String>, example = json!(["read:/climate"]))]
    pub scopes: Vec<Scope>,
    /// Seconds until it ends; 8 hours if absent, at most 366 days.
    #[serde(default)]
    pub expires_in_seconds: Option<u64>,
    /// What it is for, shown in lists.
    #[serde(default)]
    pub label: Option<String>,
}

/// A token as it is listed; its text is shown only once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its id.
    #[schema(value_type = String, format = "uuid")]
    pub id: TokenId,
    /// The user.
    #[schema(value_type = String)]
    pub subject: Subject,
    /// Its restrictions.
    #[schema(value_type = Vec<String>)]
    pub scopes: Vec<Scope>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = "date-time")]
    pub issued: Timestamp,
    /// When it ends.
    #[schema(value_type = String, format = "date-time")]
    pub expires: Timestamp,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "date-time")]
    pub revoked: Option<Timestamp>,
}

/// A token that was just made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    /// What it is.
    #[serde(flatten)]
    pub token: Token,
    /// Its text, for `Authorization: Bearer …`.
    pub secret: String,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("token", &self.token).field("secret", &"<redacted>").finish()
    }
}

/// A grant on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// To whom.
    #[schema(value_type = String, example = "group:wp3")]
    pub subject: Subject,
    /// What.
    #[schema(value_type = String, example = "read")]
    pub permission: Permission,
    /// The collection it was given on: the path itself, or one above it.
    pub path: String,
}

/// Gives or changes a grant on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGrant {
    /// To whom.
    #[schema(value_type = String, example = "group:wp3")]
    pub subject: Subject,
    /// What.
    #[schema(value_type = String, example = "read")]
    pub permission: Permission,
}
