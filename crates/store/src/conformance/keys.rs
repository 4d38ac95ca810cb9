//! Trials of stat, list, delete, mkdir, rename, usage and checksum.

use std::collections::BTreeSet;

use super::context::{Context, expect, key};
use super::{Outcome, ensure, trials};
use crate::{Delete, ErrorKind, FileIdentity, Generation, Kind, ListOptions, StoreExt};

trials![
    stat_tells_kind_and_size,
    stat_of_a_missing_key_is_not_found,
    stat_below_a_file_finds_nothing,
    generation_differs_after_a_change,
    stage_area_is_no_key,
    names_are_kept_byte_for_byte,
    list_gives_each_entry_once,
    list_of_a_missing_prefix,
    list_of_a_file,
    list_hides_what_is_reserved_or_staged,
    list_pages_continue_where_they_ended,
    delete_tells_whether_it_was_there,
    delete_keeps_collections_with_entries,
    delete_only_a_collection,
    delete_only_the_file_meant,
    delete_only_the_content_meant,
    mkdir_makes_all_above,
    rename_moves_and_never_replaces,
    usage_is_told,
    checksum_is_right_or_unsupported,
];

async fn stat_tells_kind_and_size(c: Context) -> Outcome {
    c.put("a/file", b"12345").await?;
    let meta = c.store.stat(&key("a/file")).await?;
    ensure!(meta.kind == Kind::File && meta.size.0 == 5, "got {meta:?}");
    let can = c.can();
    ensure!(meta.generation.is_some() == can.generations, "generation is {:?}", meta.generation);
    ensure!(meta.identity.is_some() == can.identities, "identity is {:?}", meta.identity);
    if can.collections {
        let meta = c.store.stat(&key("a")).await?;
        ensure!(meta.kind == Kind::Collection && meta.size.0 == 0, "of a collection, got {meta:?}");
    }
    Ok(())
}

async fn stat_of_a_missing_key_is_not_found(c: Context) -> Outcome {
    expect(c.store.stat(&key("none")).await, &[ErrorKind::NotFound], "stat")?;
    expect(c.store.stat(&key("none/below")).await, &[ErrorKind::NotFound], "stat below nothing")
}

async fn stat_below_a_file_finds_nothing(c: Context) -> Outcome {
    c.put("file", b"x").await?;
    let kinds = [ErrorKind::NotFound, ErrorKind::NotACollection];
    expect(c.store.stat(&key("file/below")).await, &kinds, "stat")
}

async fn generation_differs_after_a_change(c: Context) -> Outcome {
    let Some(tamper) = c.tamper.clone().filter(|_| c.can().generations) else { return Ok(()) };
    c.put("file", b"one").await?;
    let before = c.store.stat(&key("file")).await?;
    ensure!(c.store.stat(&key("file")).await?.generation == before.generation, "it changed by itself");
    tamper(&key("file"), b"two");
    let after = c.store.stat(&key("file")).await?;
    ensure!(after.generation != before.generation, "still {:?}", after.generation);
    Ok(())
}

async fn stage_area_is_no_key(c: Context) -> Outcome {
    let stage = c.stage_bytes("hidden", "file", b"x").await?;
    let inside = key(&format!("{}/{}", crate::STAGE, stage.token));
    let kinds = [ErrorKind::InvalidKey];
    expect(c.store.stat(&inside).await, &kinds, "stat")?;
    expect(c.store.read(&inside, Default::default()).await, &kinds, "read")?;
    expect(c.store.delete_one(&inside, None).await, &kinds, "delete")?;
    expect(c.store.list(ListOptions::of(key(crate::STAGE))).await, &kinds, "list")?;
    if c.can().write.late_key {
        let mut publish = stage;
        publish.key = inside;
        expect(c.store.publish_one(publish).await, &kinds, "publish")?;
    }
    Ok(())
}

async fn names_are_kept_byte_for_byte(c: Context) -> Outcome {
    let long = "x".repeat(200);
    let names = [
        "with space",
        " leading and trailing ",
        "ünïcödé",
        "e\u{301}",
        "\u{e9}",
        "日本語",
        "a+b&c=d#e?f",
        "100%25",
        "~tilde",
        ".hidden",
        "back\\slash",
        "quote'\"",
        "semi;colon:colon",
        "*",
        "[x]",
        "CaSe",
        "case",
        long.as_str(),
    ];
    let mut kept = Vec::new();
    for name in names {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_. ~".contains(&byte));
        match c.put(&format!("names/{name}"), name.as_bytes()).await {
            // A storage may have no such names, but must not change them.
            Err(error) if error.kind() == ErrorKind::InvalidKey && !(is_plain && name.trim() == name) => {}
            other => {
                other?;
                kept.push(name);
            }
        }
    }
    let listed: BTreeSet<String> = c.keys(ListOptions::of(key("names"))).await?.into_iter().collect();
    for name in &kept {
        let full = format!("names/{name}");
        ensure!(c.get(&full).await?.as_ref() == name.as_bytes(), "{name:?} has other bytes");
        ensure!(!c.can().list || listed.contains(&full), "{name:?} is not in the listing {listed:?}");
    }
    ensure!(!c.can().list || listed.len() == kept.len(), "{} names listed", listed.len());
    Ok(())
}

/// Puts some files and returns all keys of a recursive listing, sorted.
async fn some_files(c: &Context) -> Result<Vec<&'static str>, super::Failure> {
    // `a-b` and `a.b` sort between `a` and `a/`: where an order by text and one by components differ.
    for file in ["a/1", "a/2", "a/deep/er/3", "a-b/4", "a.b", "z"] {
        c.put(file, b"x").await?;
    }
    let mut expected = vec!["a/1", "a/2", "a/deep/er/3", "a-b/4", "a.b", "z"];
    if c.can().collections {
        c.store.mkdir(&key("empty")).await?;
        expected.extend(["a", "a/deep", "a/deep/er", "a-b", "empty"]);
    }
    expected.sort_unstable();
    Ok(expected)
}

async fn list_gives_each_entry_once(c: Context) -> Outcome {
    if !c.can().list {
        return expect(c.store.list(ListOptions::default()).await, &[ErrorKind::Unsupported], "list");
    }
    let expected = some_files(&c).await?;
    let all = c.keys(ListOptions::default().recursive()).await?;
    ensure!(all == expected, "recursive: {all:?}");

    let mut top = c.keys(ListOptions::default()).await?;
    top.sort_unstable();
    let expected: &[&str] =
        if c.can().collections { &["a", "a-b", "a.b", "empty", "z"] } else { &["a", "a-b", "a.b", "z"] };
    ensure!(top == expected, "at the top: {top:?}");

    let mut below = c.keys(ListOptions::of(key("a"))).await?;
    below.sort_unstable();
    ensure!(below == ["a/1", "a/2", "a/deep"], "in a collection: {below:?}");
    for entry in c.store.list_all(ListOptions::of(key("a")), 10).await?.entries {
        let kind = if entry.key.as_str() == "a/deep" { Kind::Collection } else { Kind::File };
        ensure!(entry.meta.kind == kind, "{} is {:?}", entry.key, entry.meta.kind);
        ensure!(
            kind == Kind::Collection || entry.meta.size.0 == 1,
            "{} has {} bytes",
            entry.key,
            entry.meta.size
        );
    }
    Ok(())
}

async fn list_of_a_missing_prefix(c: Context) -> Outcome {
    let listed = c.keys(ListOptions::of(key("none"))).await;
    match (c.can().list, c.can().collections) {
        (false, _) => expect(listed, &[ErrorKind::Unsupported], "list"),
        (true, true) => expect(listed, &[ErrorKind::NotFound], "list"),
        (true, false) => {
            ensure!(listed?.is_empty(), "it has entries");
            Ok(())
        }
    }
}

async fn list_of_a_file(c: Context) -> Outcome {
    if !(c.can().list && c.can().collections) {
        return Ok(());
    }
    c.put("file", b"x").await?;
    expect(c.keys(ListOptions::of(key("file"))).await, &[ErrorKind::NotACollection], "list")
}

async fn list_hides_what_is_reserved_or_staged(c: Context) -> Outcome {
    if !c.can().list {
        return Ok(());
    }
    c.put("user", b"x").await?;
    c.put(".percale/trees/1", b"x").await?;
    c.stage_bytes("staged", "later", b"x").await?;
    let plain = c.keys(ListOptions::default().recursive()).await?;
    ensure!(plain == ["user"], "{plain:?}");
    let all = c.keys(ListOptions::default().recursive().with_reserved()).await?;
    ensure!(all.iter().any(|key| key == ".percale/trees/1"), "asked for, but not in {all:?}");
    ensure!(!all.iter().any(|key| key.starts_with(crate::STAGE)), "staged files in {all:?}");
    let below = c.keys(ListOptions::of(key(".percale/trees"))).await?;
    ensure!(below == [".percale/trees/1"], "of a reserved prefix: {below:?}");
    Ok(())
}

async fn list_pages_continue_where_they_ended(c: Context) -> Outcome {
    if !c.can().list {
        return Ok(());
    }
    let expected = some_files(&c).await?;
    for size in [1, 2, 1000] {
        let options = ListOptions::default().recursive().page_size(size);
        let whole = c.keys(options.clone()).await?;
        for at in 0..whole.len() {
            let after = c.keys(options.clone().after(key(&whole[at]))).await?;
            ensure!(after == whole[at + 1..], "after {}: {after:?} of {whole:?}", whole[at]);
        }
        ensure!(whole.len() == expected.len(), "pages of {size}: {whole:?}");
        let mut stream = c.store.list(options).await?;
        while let Some(page) = stream.next().await? {
            ensure!(page.entries.len() <= size, "{} entries in a page of {size}", page.entries.len());
        }
    }
    Ok(())
}

async fn delete_tells_whether_it_was_there(c: Context) -> Outcome {
    c.put("a/1", b"x").await?;
    c.put("a/2", b"x").await?;
    let items = ["a/1", "none", "none/below", "a/2"].map(|text| Delete::key(key(text))).to_vec();
    let results: Vec<bool> = c.store.delete(items).await?.into_iter().collect::<Result<_, _>>()?;
    ensure!(results == [true, false, false, true], "{results:?}");
    expect(c.store.stat(&key("a/1")).await, &[ErrorKind::NotFound], "stat of a deleted file")?;
    ensure!(!c.store.delete_one(&key("a/1"), None).await?, "deleted twice");
    ensure!(c.store.delete(Vec::new()).await?.is_empty(), "results for nothing");
    Ok(())
}

async fn delete_keeps_collections_with_entries(c: Context) -> Outcome {
    if !c.can().collections {
        return Ok(());
    }
    c.put("a/1", b"x").await?;
    expect(c.store.delete_one(&key("a"), None).await, &[ErrorKind::NotEmpty], "delete")?;
    ensure!(c.get("a/1").await?.as_ref() == b"x", "the entry is damaged");
    c.store.delete_one(&key("a/1"), None).await?;
    ensure!(c.store.delete_one(&key("a"), None).await?, "an empty collection stays");
    Ok(())
}

async fn delete_only_a_collection(c: Context) -> Outcome {
    c.put("a/1", b"x").await?;
    let delete = async |at: &str| c.store.delete(vec![Delete::collection(key(at))]).await?.remove(0);
    expect(delete("a/1").await, &[ErrorKind::NotACollection], "delete of a file")?;
    ensure!(c.get("a/1").await?.as_ref() == b"x", "a file was deleted in the place of a collection");
    ensure!(!delete("none").await?, "a missing one was there");
    if !c.can().collections {
        return Ok(());
    }
    expect(delete("a").await, &[ErrorKind::NotEmpty], "delete with an entry")?;
    c.store.delete_one(&key("a/1"), None).await?;
    ensure!(delete("a").await?, "an empty collection stays");
    Ok(())
}

async fn delete_only_the_file_meant(c: Context) -> Outcome {
    let published = c.put("file", b"x").await?;
    let other = Some(FileIdentity::new("another"));
    if !c.can().identities {
        return expect(c.store.delete_one(&key("file"), other).await, &[ErrorKind::Unsupported], "delete");
    }
    expect(c.store.delete_one(&key("file"), other).await, &[ErrorKind::Changed], "delete of another file")?;
    ensure!(c.store.delete_one(&key("file"), published.meta.identity).await?, "the file meant stays");
    Ok(())
}

async fn delete_only_the_content_meant(c: Context) -> Outcome {
    let published = c.put("file", b"x").await?;
    let delete = async |generation| {
        let item = Delete::key(key("file")).if_generation(generation);
        c.store.delete(vec![item]).await?.remove(0)
    };
    let other = Some(Generation::new("another"));
    expect(delete(other).await, &[ErrorKind::Changed], "delete of another generation")?;
    if let Some(tamper) = c.tamper.clone() {
        tamper(&key("file"), b"y");
        let before = published.meta.generation.clone();
        expect(delete(before).await, &[ErrorKind::Changed], "delete of what was overwritten")?;
        ensure!(c.get("file").await?.as_ref() == b"y", "what was overwritten is gone");
    }
    let now = c.store.stat(&key("file")).await?.generation;
    ensure!(delete(now).await?, "the content meant stays");
    expect(c.store.stat(&key("file")).await, &[ErrorKind::NotFound], "stat of a deleted file")
}

async fn mkdir_makes_all_above(c: Context) -> Outcome {
    if !c.can().collections {
        return expect(c.store.mkdir(&key("a")).await, &[ErrorKind::Unsupported], "mkdir");
    }
    ensure!(c.store.mkdir(&key("a/b/c")).await?, "it was there");
    ensure!(!c.store.mkdir(&key("a/b/c")).await?, "made twice");
    ensure!(!c.store.mkdir(&key("a")).await?, "the one above was made twice");
    c.put("file", b"x").await?;
    let kinds = [ErrorKind::AlreadyExists, ErrorKind::NotACollection];
    expect(c.store.mkdir(&key("file")).await, &kinds, "mkdir over a file")?;
    expect(c.store.mkdir(&key("file/below")).await, &kinds, "mkdir below a file")
}

async fn rename_moves_and_never_replaces(c: Context) -> Outcome {
    c.put("a", b"a").await?;
    c.put("b", b"b").await?;
    if !c.can().rename {
        return expect(c.store.rename(&key("a"), &key("c")).await, &[ErrorKind::Unsupported], "rename");
    }
    expect(c.store.rename(&key("a"), &key("b")).await, &[ErrorKind::AlreadyExists], "rename over a file")?;
    expect(c.store.rename(&key("none"), &key("c")).await, &[ErrorKind::NotFound], "rename of nothing")?;
    ensure!(
        c.get("a").await?.as_ref() == b"a" && c.get("b").await?.as_ref() == b"b",
        "a refused rename did something"
    );
    let identity = c.store.stat(&key("a")).await?.identity;
    c.store.rename(&key("a"), &key("new/place/c")).await?;
    ensure!(c.get("new/place/c").await?.as_ref() == b"a", "other bytes");
    ensure!(c.store.stat(&key("new/place/c")).await?.identity == identity, "another identity");
    expect(c.store.stat(&key("a")).await, &[ErrorKind::NotFound], "stat of the old key")?;
    if c.can().collections {
        c.store.rename(&key("new/place"), &key("moved")).await?;
        ensure!(c.get("moved/c").await?.as_ref() == b"a", "a collection lost its entry");
        expect(
            c.store.rename(&key("moved"), &key("moved/in")).await,
            &[ErrorKind::InvalidInput],
            "rename into itself",
        )?;
    }
    Ok(())
}

async fn usage_is_told(c: Context) -> Outcome {
    let usage = c.store.usage().await;
    if !c.can().usage {
        return expect(usage, &[ErrorKind::Unsupported], "usage");
    }
    let usage = usage?;
    ensure!(usage.total.0 > 0 && usage.free <= usage.total, "{usage:?}");
    Ok(())
}

async fn checksum_is_right_or_unsupported(c: Context) -> Outcome {
    c.put("file", b"some bytes").await?;
    for algorithm in percale_core::digest::Algorithm::ALL {
        let kept = c.store.checksum(&key("file"), algorithm).await;
        if !c.can().native_digests.contains(&algorithm) {
            expect(kept, &[ErrorKind::Unsupported], algorithm.as_str())?;
            continue;
        }
        let mut hasher = percale_core::digest::Hasher::new([algorithm]);
        hasher.update(b"some bytes");
        ensure!(Some(&kept?) == hasher.finish().first(), "{algorithm} is wrong");
    }
    Ok(())
}
