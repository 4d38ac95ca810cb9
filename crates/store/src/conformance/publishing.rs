//! Trials of publishing.

use super::context::{Context, content, expect, key, token};
use super::{Outcome, ensure, trials};
use crate::{ErrorKind, FileIdentity, ListOptions, Publish, PublishMode, StoreExt};

trials![
    publish_makes_what_is_above,
    publish_keeps_the_identity,
    publish_never_replaces,
    publish_of_several_at_once_has_one_winner,
    publish_replaces_if_asked,
    publish_of_nothing,
    publish_may_be_repeated,
    publish_to_another_key,
    publish_of_a_batch_gives_each_its_result,
    publish_below_a_file,
    publish_over_a_collection,
];

async fn publish_makes_what_is_above(c: Context) -> Outcome {
    let bytes = content((6 << 20) + 1, 7);
    let published = c.put("a/b/c/file", &bytes).await?;
    ensure!(
        published.key == key("a/b/c/file") && published.meta.size.0 == bytes.len() as u64,
        "{published:?}"
    );
    ensure!(c.get("a/b/c/file").await? == bytes, "other bytes");
    let meta = c.store.stat(&key("a/b/c/file")).await?;
    ensure!(meta.generation == published.meta.generation, "publish told {published:?}, stat {meta:?}");
    Ok(())
}

async fn publish_keeps_the_identity(c: Context) -> Outcome {
    if !c.can().identities {
        return Ok(());
    }
    let one = c.stage_bytes("one", "a/1", b"x").await?;
    let two = c.stage_bytes("two", "a/2", b"x").await?;
    ensure!(
        one.identity.is_some() && one.identity != two.identity,
        "{:?} and {:?}",
        one.identity,
        two.identity
    );
    let published = c.store.publish_one(one.clone()).await?;
    ensure!(published.meta.identity == one.identity, "published as {:?}", published.meta.identity);
    ensure!(c.store.stat(&key("a/1")).await?.identity == one.identity, "stat says another");
    Ok(())
}

async fn publish_never_replaces(c: Context) -> Outcome {
    c.put("file", b"first").await?;
    let file = c.stage_bytes("two", "file", b"second").await?;
    let refused = c.store.publish_one(file).await;
    if !c.can().write.publish_if_absent {
        return expect(refused, &[ErrorKind::Unsupported], "publish if absent");
    }
    expect(refused, &[ErrorKind::AlreadyExists], "publish to a taken key")?;
    ensure!(c.get("file").await?.as_ref() == b"first", "what was there is damaged");
    if c.can().write.resumable {
        ensure!(c.store.discard(&token("two")).await?, "the refused file is not staged any more");
    }
    Ok(())
}

async fn publish_of_several_at_once_has_one_winner(c: Context) -> Outcome {
    if !c.can().write.publish_if_absent {
        return Ok(());
    }
    for round in 0..5 {
        let to = format!("contested/{round}");
        let mut attempts = tokio::task::JoinSet::new();
        for writer in 0..6u8 {
            let file = c.stage_bytes(&format!("r{round}w{writer}"), &to, &[writer; 1000]).await?;
            let store = c.store.clone();
            attempts.spawn(async move { (writer, store.publish_one(file).await) });
        }
        let mut winner = None;
        while let Some(done) = attempts.join_next().await {
            let (writer, result) = done.map_err(|error| super::Failure(error.to_string()))?;
            if result.is_ok() {
                ensure!(winner.is_none(), "writers {winner:?} and {writer} both won");
                winner = Some(writer);
            } else {
                expect(result, &[ErrorKind::AlreadyExists], "the loser")?;
            }
        }
        let Some(winner) = winner else { return Err(super::Failure("nobody won".into())) };
        ensure!(c.get(&to).await?.as_ref() == [winner; 1000], "the bytes are not the winner's");
    }
    Ok(())
}

async fn publish_replaces_if_asked(c: Context) -> Outcome {
    c.put("file", b"first").await?;
    let mut file = c.stage_bytes("two", "file", b"second").await?;
    file.mode = PublishMode::Replace;
    let replaced = c.store.publish_one(file).await;
    if !c.can().write.replace {
        expect(replaced, &[ErrorKind::Unsupported], "replace")?;
        ensure!(c.get("file").await?.as_ref() == b"first", "what was there is damaged");
        return Ok(());
    }
    replaced?;
    ensure!(c.get("file").await?.as_ref() == b"second", "other bytes");
    let mut file = c.stage_bytes("three", "new", b"third").await?;
    file.mode = PublishMode::Replace;
    c.store.publish_one(file).await?;
    ensure!(c.get("new").await?.as_ref() == b"third", "replacing nothing did nothing");
    Ok(())
}

async fn publish_of_nothing(c: Context) -> Outcome {
    let nothing = Publish::if_absent(token("none"), key("a/file"), None);
    expect(c.store.publish_one(nothing).await, &[ErrorKind::NotFound], "publish")?;
    let other = Publish::if_absent(token("none"), key("a/file"), Some(FileIdentity::new("none")));
    expect(c.store.publish_one(other).await, &[ErrorKind::NotFound], "publish with an identity")?;
    c.put("a/taken", b"x").await?;
    let other = Publish::if_absent(token("none"), key("a/taken"), Some(FileIdentity::new("none")));
    expect(c.store.publish_one(other).await, &[ErrorKind::NotFound], "publish to a taken key")
}

async fn publish_may_be_repeated(c: Context) -> Outcome {
    if !c.can().identities {
        return Ok(());
    }
    let file = c.stage_bytes("one", "a/file", b"x").await?;
    let first = c.store.publish_one(file.clone()).await?;
    let second = c.store.publish_one(file).await?;
    ensure!(
        first.key == second.key && first.meta.identity == second.meta.identity,
        "{first:?} and {second:?}"
    );
    Ok(())
}

async fn publish_to_another_key(c: Context) -> Outcome {
    let mut file = c.stage_bytes("one", "planned", b"x").await?;
    file.key = key("other");
    let published = c.store.publish_one(file).await;
    if c.can().write.late_key {
        published?;
        ensure!(c.get("other").await?.as_ref() == b"x", "other bytes");
    } else {
        expect(published, &[ErrorKind::InvalidInput], "publish to another key")?;
    }
    expect(c.store.stat(&key("planned")).await, &[ErrorKind::NotFound], "stat of the planned key")
}

async fn publish_of_a_batch_gives_each_its_result(c: Context) -> Outcome {
    // More than are flushed one by one.
    const FILES: usize = 40;
    c.put("batch/3/file", b"taken").await?;
    let mut files = Vec::new();
    for index in 0..FILES {
        files.push(
            c.stage_bytes(&format!("n{index}"), &format!("batch/{index}/file"), &[index as u8; 10]).await?,
        );
    }
    files.insert(5, Publish::if_absent(token("none"), key("batch/none"), None));
    let results = c.store.publish(files.clone()).await?;
    ensure!(results.len() == files.len(), "{} results for {} files", results.len(), files.len());
    for (file, result) in files.iter().zip(results) {
        match file.key.as_str() {
            "batch/none" => expect(result, &[ErrorKind::NotFound], "a token that is not staged")?,
            "batch/3/file" if c.can().write.publish_if_absent => {
                expect(result, &[ErrorKind::AlreadyExists], "a taken key")?;
            }
            _ => {
                let published = result?;
                ensure!(
                    published.key == file.key,
                    "result of {} at the place of {}",
                    published.key,
                    file.key
                );
            }
        }
    }
    for index in (0..FILES).filter(|index| *index != 3) {
        ensure!(
            c.get(&format!("batch/{index}/file")).await?.as_ref() == [index as u8; 10],
            "file {index} differs"
        );
    }
    ensure!(c.get("batch/3/file").await?.as_ref() == b"taken", "the taken key was written");
    ensure!(c.store.publish(Vec::new()).await?.is_empty(), "results for nothing");
    if c.can().list {
        let listed = c.keys(ListOptions::of(key("batch"))).await?;
        ensure!(listed.len() == FILES, "{} entries", listed.len());
    }
    Ok(())
}

async fn publish_below_a_file(c: Context) -> Outcome {
    if !c.can().collections {
        return Ok(());
    }
    c.put("file", b"x").await?;
    let file = c.stage_bytes("one", "file/below", b"y").await?;
    expect(c.store.publish_one(file).await, &[ErrorKind::NotACollection], "publish")?;
    ensure!(c.get("file").await?.as_ref() == b"x", "the file above is damaged");
    Ok(())
}

async fn publish_over_a_collection(c: Context) -> Outcome {
    if !c.can().collections {
        return Ok(());
    }
    c.put("a/file", b"x").await?;
    let mut file = c.stage_bytes("one", "a", b"y").await?;
    expect(c.store.publish_one(file.clone()).await, &[ErrorKind::AlreadyExists], "publish")?;
    if c.can().write.replace {
        file.mode = PublishMode::Replace;
        expect(c.store.publish_one(file).await, &[ErrorKind::IsACollection], "replace")?;
    }
    ensure!(c.get("a/file").await?.as_ref() == b"x", "the collection is damaged");
    Ok(())
}
