//! What there is without the catalog: a table with a column of JSON, and a GIN index of it.

use std::time::Instant;

use futures::TryStreamExt as _;
use tokio_postgres::{Client, NoTls};

use crate::bench::{Bench, Failed, say_loaded, say_times};
use crate::{BEGIN, INSTRUMENTS, QUESTIONS};

/// The name under which the figures are printed.
const PEER: &str = "jsonb";
/// Questions that no index answers.
const FEW: usize = 5;

async fn connect(url: &str) -> Result<Client, Failed> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Does what the database would do by itself some minutes later.
pub async fn look_over(url: &str) -> Result<(), Failed> {
    Ok(connect(url).await?.batch_execute("VACUUM ANALYZE").await?)
}

/// Makes the table, unless it is there, and searches it.
pub async fn run(bench: &Bench, objects: usize, rounds: usize) -> Result<(), Failed> {
    let client = connect(&bench.url).await?;
    if client.query_one("SELECT to_regclass('by_hand') IS NULL", &[]).await?.get(0) {
        load(&client, objects).await?;
    }
    for _ in 0..rounds {
        for (what, query, questions) in [
            ("one integer", "attributes @> jsonb_build_object('run', $1::bigint)", QUESTIONS),
            ("one text", "attributes @> jsonb_build_object('title', 'Granule ' || $1::bigint)", QUESTIONS),
            (
                "100 by range and text",
                "attributes @> '{\"instrument\": \"MODIS\"}' AND (attributes->>'run')::bigint BETWEEN $1::bigint AND $1::bigint + 499",
                FEW,
            ),
            (
                "an hour",
                "(attributes->>'taken')::bigint >= $1::bigint * 60000000 + 1262304000000000 \
                 AND (attributes->>'taken')::bigint < $1::bigint * 60000000 + 1262307600000000",
                FEW,
            ),
            ("a word of a text", "attributes->>'title' ~ ('\\m' || $1::bigint || '\\M')", FEW),
            ("nothing", "attributes @> jsonb_build_object('run', -1 - $1::bigint)", QUESTIONS),
        ] {
            let statement = client.prepare(&format!("SELECT id, path FROM by_hand WHERE {query}")).await?;
            let (mut took, mut found) = (Vec::with_capacity(questions), 0);
            for question in 0..questions {
                let start = Instant::now();
                found += client.query(&statement, &[&((question * 7919 % objects) as i64)]).await?.len();
                took.push(start.elapsed().as_secs_f64() * 1000.0);
            }
            say_times(PEER, what, &mut took, found as f64 / questions as f64);
        }
        for (what, query) in [
            ("20 %", "attributes @> '{\"instrument\": \"MODIS\"}'"),
            ("all", "(attributes->>'level')::float8 >= 0"),
        ] {
            let start = Instant::now();
            let none: [i64; 0] = [];
            let rows = client.query_raw(&format!("SELECT * FROM by_hand WHERE {query}"), none).await?;
            let found = rows.try_fold(0_u64, |count, _| async move { Ok(count + 1) }).await?;
            let seconds = start.elapsed().as_secs_f64();
            let speed = found as f64 / seconds;
            println!("{PEER}: {what}: rows {found}, seconds {seconds:.3}, rows_per_s {speed:.0}");
        }
        let start = Instant::now();
        let facet = "SELECT attributes->>'instrument', COUNT(*) FROM by_hand GROUP BY 1";
        let values = client.query(facet, &[]).await?.len();
        let seconds = start.elapsed().as_secs_f64();
        println!("{PEER}: all counted with a facet: rows {values}, seconds {seconds:.4}");
    }
    Ok(())
}

async fn load(client: &Client, objects: usize) -> Result<(), Failed> {
    let start = Instant::now();
    let instruments: Vec<String> = INSTRUMENTS.iter().map(|name| format!("'{name}'")).collect();
    let (instruments, count) = (instruments.join(", "), INSTRUMENTS.len());
    let make = format!(
        "CREATE TABLE by_hand (id BIGINT PRIMARY KEY, path TEXT NOT NULL, attributes JSONB NOT NULL); \
         INSERT INTO by_hand SELECT n, '/bench/raw/' || n / 1000 || '/granule-' || n || '.nc', jsonb_build_object( \
         'run', n, 'title', 'Granule ' || n, 'instrument', (ARRAY[{instruments}])[(n % {count} + 1)::int], \
         'level', (n % 1000) / 2.0, 'taken', {BEGIN} + n * 60000000, 'is_day', n % 2 = 0) \
         FROM generate_series(0::bigint, {objects}::bigint - 1) AS n; \
         CREATE INDEX by_hand_attributes ON by_hand USING gin (attributes jsonb_path_ops); ANALYZE by_hand"
    );
    client.batch_execute(&make).await?;
    say_loaded(PEER, "6 attributes each", objects, start.elapsed().as_secs_f64());
    Ok(())
}
