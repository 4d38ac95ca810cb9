//! `api`, for what has no verb of its own, and `version`.

use std::io::Read;

use clap::Args;
use percale_api::Problem;
use percale_core::ErrorCode;
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Lines;

/// `percale api`
#[derive(Debug, Args)]
#[command(after_help = "\
The answer goes to standard output as it is. A problem makes the exit code that its code has.

Examples:
  percale api GET /v1/site
  percale api GET '/v1/list/climate?limit=10'
  percale api POST /v1/tasks --data '{\"kind\": \"verify\", \"path\": \"/climate\"}'
  percale api PATCH /v1/spaces/climate --data @change.json
  percale api GET /v1/openapi.json | jq .info")]
pub struct ApiArgs {
    /// GET, HEAD, POST, PUT, PATCH or DELETE
    #[arg(value_parser = parse_method)]
    method: String,
    /// Path and query, such as /v1/site
    path: String,
    /// JSON to send: itself, @FILE, or - for standard input
    #[arg(long, short, value_name = "JSON")]
    data: Option<String>,
}

/// `percale version`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  percale version
  percale version --site
  percale version --site --json")]
pub struct VersionArgs {
    /// The site's too
    #[arg(long)]
    site: bool,
}

fn parse_method(text: &str) -> Result<String, String> {
    let method = text.to_ascii_uppercase();
    match method.as_str() {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" => Ok(method),
        _ => Err("expected GET, HEAD, POST, PUT, PATCH or DELETE".into()),
    }
}

/// Makes a call.
pub async fn run(args: ApiArgs, context: &Context) -> Result {
    if !args.path.starts_with('/') {
        let failure = Failure::usage(format!("the path '{}' does not begin with a slash", args.path));
        return Err(failure.with_hint(format!("Did you mean /{}?", args.path)));
    }
    let data = match args.data.as_deref() {
        None => None,
        Some("-") => {
            let mut data = Vec::new();
            std::io::stdin().lock().read_to_end(&mut data)?;
            Some(data)
        }
        Some(text) => match text.strip_prefix('@') {
            Some(file) => {
                let file = std::path::Path::new(file);
                Some(std::fs::read(file).map_err(|error| Failure::local("read", file, &error))?)
            }
            None => Some(text.as_bytes().to_vec()),
        },
    };
    let answer = context.client()?.raw(&args.method, &args.path, data.as_deref()).await?;
    let mut out = Lines::open();
    match serde_json::from_slice::<Value>(&answer.body) {
        Ok(value) if !context.output.json => {
            out.line(serde_json::to_string_pretty(&value).unwrap_or_default())?
        }
        _ => out.bytes(&answer.body)?,
    }
    out.finish()?;
    if (200..400).contains(&answer.status) {
        return Ok(());
    }
    let code = serde_json::from_slice::<Problem>(&answer.body)
        .map_or(ErrorCode::Internal, |problem| problem.error_code());
    if !context.output.json {
        context.output.talk(format!("HTTP {}", answer.status));
    }
    Err(Failure::told(code))
}

/// Shows versions.
pub async fn version(args: VersionArgs, context: &Context) -> Result {
    let own = env!("CARGO_PKG_VERSION");
    if !args.site {
        return context.output.one(
            &json!({"percale": own}),
            |_| own.to_owned(),
            |_| format!("percale {own}"),
        );
    }
    let client = context.client()?;
    let (site, (server, _)) = tokio::try_join!(client.site(), client.version())?;
    let both = json!({"percale": own, "site": site, "server": server});
    context.output.one(
        &both,
        |_| own.to_owned(),
        |_| {
            format!(
                "percale {own}\nserver  {} (catalogue {}, layout {})\nsite    {} {}",
                server.version, server.catalog, server.schema, site.name, site.id
            )
        },
    )
}
