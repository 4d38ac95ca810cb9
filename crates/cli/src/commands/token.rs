//! `token`: tokens of the site's built-in issuer.

use clap::{Args, Subcommand};
use percale_api::access::{NewToken, Token};
use percale_core::access::{Scope, Subject};
use percale_core::ids::TokenId;

use crate::config::write_private;
use crate::context::Context;
use crate::duration::Span;
use crate::failure::Result;
use crate::output::time;

/// `percale token`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token
    Create(CreateArgs),
    /// List tokens
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Take tokens back
    Revoke(RevokeArgs),
}

/// `percale token create`
#[derive(Debug, Args)]
#[command(after_help = "\
The token is printed once and not kept by the site. Scopes only take away: a token never allows more than its user may do.

Examples:
  percale token create --label notebook                    for oneself, 8 hours
  percale token create --scope read:/climate --expires 7d  may only read there
  percale token create --subject user:alice --expires 30d --out alice.token
  percale token create --subject user:bob --group group:wp3
  percale token create --json | jq -r .secret")]
pub struct CreateArgs {
    /// The user; oneself if absent (others: administrators only)
    #[arg(long, value_name = "USER")]
    subject: Option<Subject>,
    /// A group that the token vouches for (administrators only)
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<Subject>,
    /// What it may do: read:/PATH, write:/PATH, manage:/PATH, admin
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,
    /// How long it lives
    #[arg(long, value_name = "TIME", default_value = "8h")]
    expires: Span,
    /// What it is for, shown in lists
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Write the token to FILE (mode 0600) instead of standard output
    #[arg(long, value_name = "FILE")]
    out: Option<std::path::PathBuf>,
}

/// `percale token list`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale token list
  percale token list --json
  percale -q token list")]
pub struct ListArgs {}

/// `percale token revoke`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale token revoke 0193a1b2-0000-7000-8000-000000000001")]
pub struct RevokeArgs {
    /// The ids, as `percale token list` shows them
    #[arg(required = true)]
    ids: Vec<TokenId>,
}

/// Runs a command of the group.
pub async fn run(command: TokenCommand, context: &Context) -> Result {
    let client = context.client()?;
    match command {
        TokenCommand::Create(args) => {
            let new = NewToken {
                subject: args.subject,
                groups: args.groups,
                scopes: args.scopes,
                expires_in_seconds: Some(args.expires.0.as_secs()),
                label: args.label,
            };
            let issued = client.create_token(&new).await?;
            match &args.out {
                Some(path) => {
                    write_private(path, format!("{}\n", issued.secret).as_bytes())?;
                    context.output.one(
                        &issued.token,
                        |token| token.id.to_string(),
                        |_| path.display().to_string(),
                    )?;
                }
                None => context.output.one(
                    &issued,
                    |issued| issued.secret.clone(),
                    |issued| issued.secret.clone(),
                )?,
            }
            let Token { id, subject, expires, .. } = &issued.token;
            if !context.output.json {
                context.output.talk(format!("token {id} of {subject}, valid until {} UTC", time(*expires)));
            }
            Ok(())
        }
        TokenCommand::List(ListArgs {}) => {
            let tokens = client.all_tokens().await?;
            context.output.list(
                &tokens,
                &["id", "user", "scopes", "issued", "expires", "state", "label"],
                |token| token.id.to_string(),
                row,
            )
        }
        TokenCommand::Revoke(args) => {
            for id in args.ids {
                client.revoke_token(id).await?;
                context.output.talk(format!("token {id} is revoked"));
            }
            Ok(())
        }
    }
}

fn row(token: &Token) -> Vec<String> {
    let scopes: Vec<_> = token.scopes.iter().map(ToString::to_string).collect();
    let state = match token.revoked {
        Some(_) => "revoked",
        None if token.expires < percale_core::Timestamp::now() => "expired",
        None => "valid",
    };
    vec![
        token.id.to_string(),
        token.subject.to_string(),
        if scopes.is_empty() { "-".into() } else { scopes.join(" ") },
        time(token.issued),
        time(token.expires),
        state.into(),
        token.label.clone().unwrap_or_default(),
    ]
}
