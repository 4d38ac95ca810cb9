//! Serves one site with what the environment sets (`PERCALE__HTTP__LISTEN` …), until it is told to stop.

use percale_server::config::Sources;
use percale_server::{Result, logging, start};

#[tokio::main]
async fn main() -> Result<()> {
    let config = Sources::default().load()?.config;
    logging::init(&config.log)?;
    let running = start(config).await?;
    println!("{} {}", running.url(), running.admin_token_path().display());
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "cannot wait for a signal");
    }
    running.shutdown().await;
    Ok(())
}
