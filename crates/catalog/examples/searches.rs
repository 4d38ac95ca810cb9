//! Measures searching: `searches [OBJECTS [ROUNDS]] [URL…]`, by default a million objects, one round, and SQLite in a folder of its own; the
//! URL `postgres` starts a server. With the URL of a database that has the objects from a run before, only the searches are measured.
//!
//! Six attributes for each object, as for the records of an instrument, written through the catalog like those of headers. Then
//! selective queries, each by itself, with the half and the hundredth that took longest; queries of all sizes read to their end, counted,
//! and sorted. On PostgreSQL the same objects are then in a table of the same database as one would make it by hand, with a column of JSON
//! and a GIN index, and are searched there.

mod bench;
#[path = "bench/jsonb.rs"]
mod jsonb;

use std::time::Instant;

use futures::StreamExt as _;
use percale_catalog::*;
use percale_core::attribute::Float;
use percale_core::query::{Comparison, Condition, Field, Literal, Test};
use percale_core::{AttributeValue, ByteCount, ObjectPath, Timestamp};

use bench::{Bench, Failed};

const FILES_IN_FOLDER: usize = 1000;
const FOLDERS_IN_CALL: usize = 4;
/// Folders on their way at once.
const AT_ONCE: usize = 4;
/// Questions of each kind.
const QUESTIONS: usize = 1000;
const INSTRUMENTS: [&str; 5] = ["MODIS", "VIIRS", "AVHRR", "SeaWiFS", "OLCI"];
/// 2010-01-01T00:00:00Z, from which on an object was taken each minute.
const BEGIN: i64 = 1_262_304_000_000_000;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut number = |otherwise: usize| {
        let word = arguments.next_if(|word| word.parse::<usize>().is_ok());
        word.map_or(Ok(otherwise), |word| word.parse())
    };
    let (objects, rounds) = (number(1_000_000)?, number(1)?);
    let urls = arguments.collect();
    bench::for_each(urls, StoreLayout::Native, async |bench| {
        if !bench.is_old {
            load(bench, objects).await?;
            if bench.url.starts_with("postgres") {
                jsonb::look_over(&bench.url).await?;
            }
        }
        for _ in 0..rounds {
            selective(bench, objects).await?;
            whole(bench, objects).await?;
            all_together(bench, objects).await?;
        }
        if bench.url.starts_with("postgres") {
            jsonb::run(bench, objects, rounds).await?;
        }
        Ok(())
    })
}

/// Asks each question a thousand times, spread over all objects, the same in each round.
async fn selective(Bench { engine, catalog, admin, .. }: &Bench, objects: usize) -> Result<(), Failed> {
    for (what, question) in [
        ("one integer", (|n| equal("run", number(n as f64))) as fn(usize) -> Result<Condition, Failed>),
        ("one text", |n| equal("title", Literal::text(format!("Granule {n}")))),
        ("100 by range and text", |n| {
            let low = n as f64;
            let range = Test::Between(Some(number(low)), Some(number(low + 499.0)));
            Ok(Condition::All(vec![is("run", range)?, equal("instrument", Literal::text("modis"))?]))
        }),
        ("an hour", |n| {
            let from = BEGIN + n as i64 * 60_000_000;
            let span = (Timestamp::from_micros(from), Timestamp::from_micros(from + 3_600_000_000));
            equal("taken", Literal { span: Some(span), ..Literal::text("") })
        }),
        ("a word of a text", |n| is("title", Test::Has(Literal::text(n.to_string())))),
        ("nothing", |n| equal("run", number(-1.0 - n as f64))),
    ] {
        let mut took = Vec::with_capacity(QUESTIONS);
        let mut found = 0;
        for question_number in 0..QUESTIONS {
            let condition = question(question_number * 7919 % objects)?;
            let start = Instant::now();
            found += catalog.search(admin, SearchOptions::new(condition)).await?.page.items.len();
            took.push(start.elapsed().as_secs_f64() * 1000.0);
        }
        bench::say_times(engine, what, &mut took, found as f64 / QUESTIONS as f64);
    }
    Ok(())
}

/// Reads what is found to its end.
async fn whole(Bench { engine, catalog, admin, .. }: &Bench, objects: usize) -> Result<(), Failed> {
    for (what, condition) in [
        ("1 %", is("run", Test::Compare(Comparison::Less, number(objects as f64 / 100.0)))?),
        ("20 %", equal("instrument", Literal::text("MODIS"))?),
        ("50 %", equal("is_day", Literal { bool: Some(true), ..Literal::text("true") })?),
        ("all", is("level", Test::Compare(Comparison::AtLeast, number(0.0)))?),
        ("a word of few anywhere", Condition::Text(format!("granule {}", objects / 2))),
        ("a word of all anywhere", Condition::Text("granule".into())),
    ] {
        let mut options = SearchOptions::new(condition);
        options.limit = MAX_LIST;
        let start = Instant::now();
        let (mut found, mut first) = (0, None);
        loop {
            let page = catalog.search(admin, options.clone()).await?.page;
            first.get_or_insert_with(|| start.elapsed().as_secs_f64() * 1000.0);
            found += page.items.len();
            options.after = page.next;
            if options.after.is_none() {
                break;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let first = first.unwrap_or_default();
        println!(
            "{engine}: {what}: rows {found}, seconds {seconds:.3}, rows_per_s {:.0}, first_page_ms {first:.1}",
            found as f64 / seconds
        );
    }
    Ok(())
}

/// Counts what is found, with a facet, and sorts it.
async fn all_together(Bench { engine, catalog, admin, .. }: &Bench, objects: usize) -> Result<(), Failed> {
    for (what, condition) in [
        ("all", Condition::All(Vec::new())),
        ("20 %", equal("instrument", Literal::text("MODIS"))?),
        ("1 %", is("run", Test::Compare(Comparison::Less, number(objects as f64 / 100.0)))?),
    ] {
        let mut options = SummaryOptions::new(condition.clone());
        options.facets = vec![Field::Attribute("instrument".parse()?)];
        let start = Instant::now();
        let summary = catalog.summarize(admin, options).await?;
        let seconds = start.elapsed().as_secs_f64();
        let about = if summary.is_estimate { " (an estimate)" } else { "" };
        println!(
            "{engine}: {what} counted with a facet{about}: rows {}, seconds {seconds:.4}",
            summary.count
        );
        let mut options = SearchOptions::new(condition);
        options.sort = Some(Sort { field: Field::Attribute("level".parse()?), is_descending: true });
        let start = Instant::now();
        let sorted = catalog.search(admin, options).await;
        let seconds = start.elapsed().as_secs_f64();
        match sorted {
            Ok(found) => {
                let rows = found.page.items.len();
                println!("{engine}: {what} sorted, the first: rows {rows}, seconds {seconds:.4}");
            }
            Err(error) => println!("{engine}: {what} sorted: {error}"),
        }
    }
    Ok(())
}

async fn load(bench: &Bench, objects: usize) -> Result<(), Failed> {
    let Bench { engine, catalog, admin, .. } = bench;
    register(bench, objects).await?;
    let spaces = catalog.spaces(admin).await?;
    let space = spaces.iter().find(|space| space.name.as_str() == "bench").ok_or("there is no space")?.id;
    let start = Instant::now();
    let folders = (0..objects.div_ceil(FILES_IN_FOLDER)).map(|folder| async move {
        let mut options = ListOptions::default();
        options.limit = FILES_IN_FOLDER;
        let listed = catalog.list(admin, &folder_path(folder)?, options).await?.items;
        let headers = listed.iter().enumerate().map(|(at, Listed { entry, .. })| {
            let content = entry.content.as_ref().ok_or("a collection among the objects")?;
            let found = attributes(folder * FILES_IN_FOLDER + at)?;
            Ok(Header {
                entry: entry.id,
                version: content.version,
                as_of: Vec::new(),
                found,
                is_partial: false,
            })
        });
        let headers = headers.collect::<Result<_, Failed>>()?;
        catalog.extracted(space, None, headers).await.map_err(Failed::from)
    });
    let mut folders = futures::stream::iter(folders).buffer_unordered(AT_ONCE);
    while let Some(written) = folders.next().await {
        written?;
    }
    let seconds = start.elapsed().as_secs_f64();
    bench::say_loaded(engine, "6 attributes each", objects, seconds);
    Ok(())
}

async fn register(bench: &Bench, objects: usize) -> Result<(), Failed> {
    let Bench { catalog, admin, store, .. } = bench;
    let folders: Vec<usize> = (0..objects.div_ceil(FILES_IN_FOLDER)).collect();
    for part in folders.chunks(FOLDERS_IN_CALL) {
        let folders = part.iter().map(|folder| {
            let files = folder * FILES_IN_FOLDER..((folder + 1) * FILES_IN_FOLDER).min(objects);
            let files = files.map(|n| NativeFile {
                name: format!("granule-{n:08}.nc"),
                size: ByteCount(n as u64),
                generation: format!("{n}:0:0:0"),
                mtime: Some(Timestamp::from_micros(BEGIN)),
                mode: None,
                root: None,
            });
            Ok(NativeFolder {
                path: folder_path(*folder)?,
                key: Some(format!("raw/{folder:05}")),
                files: files.collect(),
            })
        });
        let folders = folders.collect::<Result<Vec<_>, Failed>>()?;
        let files = Register { caller: admin.clone(), store: *store, within: "/bench/raw".parse()?, folders };
        for outcomes in catalog.register(None, files).await?.folders {
            for outcome in outcomes? {
                outcome?;
            }
        }
    }
    Ok(())
}

/// Which instrument an object is of.
fn instrument(n: usize) -> &'static str {
    INSTRUMENTS.get(n % INSTRUMENTS.len()).copied().unwrap_or_default()
}

fn folder_path(folder: usize) -> Result<ObjectPath, Failed> {
    Ok(format!("/bench/raw/{folder:05}").parse()?)
}

fn attributes(n: usize) -> Result<Vec<FoundAttribute>, Failed> {
    let found = [
        ("run", AttributeValue::Integer(n as i64)),
        ("title", AttributeValue::Text(format!("Granule {n}"))),
        ("instrument", AttributeValue::Text(instrument(n).into())),
        ("level", AttributeValue::Float(Float((n % 1000) as f64 / 2.0))),
        ("taken", AttributeValue::Time(Timestamp::from_micros(BEGIN + n as i64 * 60_000_000))),
        ("is_day", AttributeValue::Bool(n.is_multiple_of(2))),
    ];
    found.into_iter().map(|(name, value)| Ok((name.parse()?, vec![value]))).collect()
}

fn number(number: f64) -> Literal {
    Literal { number: Some(number), ..Literal::text(number.to_string()) }
}

fn is(name: &str, test: Test) -> Result<Condition, Failed> {
    Ok(Condition::Is(Field::Attribute(name.parse()?), test))
}

fn equal(name: &str, value: Literal) -> Result<Condition, Failed> {
    is(name, Test::Compare(Comparison::Equal, value))
}
