//! Trials of staged files.

use std::sync::Arc;

use bytes::Bytes;
use percale_core::ids::Fence;
use percale_core::{ByteCount, ByteRange};

use super::context::{Context, FENCE, content, expect, key, token};
use super::{Outcome, ensure, trials};
use crate::{ErrorKind, PublishMode, StageOptions, StageToken, StoreExt};

trials![
    stage_is_seen_by_nobody,
    stage_of_a_token_in_use,
    stage_without_a_key,
    stage_continues,
    stage_small_does_the_same,
    writes_in_any_order,
    writes_beyond_the_announced_size,
    finish_of_an_incomplete_file,
    staged_bytes_can_be_read_back,
    staged_files_are_read_together,
    staged_files_are_read_from_the_medium,
    markers_are_kept,
    clone_is_independent,
    discard_is_repeatable,
    discard_of_a_fence_leaves_others,
    staged_files_are_listed,
];

async fn stage_is_seen_by_nobody(c: Context) -> Outcome {
    let stage = c.stage("one", "a/file").await?;
    stage.write_at(0, Bytes::from_static(b"abc")).await?;
    ensure!(*stage.token() == token("one"), "token is {}", stage.token());
    ensure!(stage.identity().is_some() == c.can().identities, "identity is {:?}", stage.identity());
    ensure!(stage.size().await?.0 == 3, "size is {}", stage.size().await?);
    if c.can().write.resumable {
        stage.sync_progress().await?;
    } else {
        expect(stage.sync_progress().await, &[ErrorKind::Unsupported], "flush")?;
    }
    expect(c.store.stat(&key("a/file")).await, &[ErrorKind::NotFound], "stat while staged")?;
    stage.finish().await?;
    expect(c.store.stat(&key("a/file")).await, &[ErrorKind::NotFound], "stat when finished")
}

async fn stage_of_a_token_in_use(c: Context) -> Outcome {
    let first = c.stage("one", "file").await?;
    expect(c.stage("one", "file").await, &[ErrorKind::AlreadyExists], "stage again")?;
    first.write_at(0, Bytes::from_static(b"abc")).await?;
    let staged = first.finish().await?;
    let file = crate::Publish::if_absent(token("one"), key("file"), staged.identity);
    c.store.publish_one(file).await?;
    ensure!(c.get("file").await?.as_ref() == b"abc", "other bytes");
    Ok(())
}

async fn stage_without_a_key(c: Context) -> Outcome {
    let stage = c.store.stage(StageOptions::new(token("one"))).await;
    if !c.can().write.late_key {
        return expect(stage, &[ErrorKind::InvalidInput], "stage without a key");
    }
    let staged = stage?.finish().await?;
    c.store.publish_one(crate::Publish::if_absent(token("one"), key("file"), staged.identity)).await?;
    Ok(())
}

async fn stage_continues(c: Context) -> Outcome {
    let options = || StageOptions::new(token("one")).key(key("file")).size(ByteCount(6));
    if !c.can().write.resumable {
        return expect(c.store.stage(options().resume()).await, &[ErrorKind::Unsupported], "resume");
    }
    let first = c.store.stage(options().resume()).await?;
    first.write_at(0, Bytes::from_static(b"abc")).await?;
    let identity = first.identity().cloned();
    first.sync_progress().await?;
    drop(first);
    let second = c.store.stage(options().resume()).await?;
    ensure!(second.size().await?.0 == 3, "size is {}", second.size().await?);
    ensure!(second.identity().cloned() == identity, "it is another file");
    second.write_at(3, Bytes::from_static(b"def")).await?;
    let staged = second.finish().await?;
    c.store.publish_one(crate::Publish::if_absent(token("one"), key("file"), staged.identity)).await?;
    ensure!(c.get("file").await?.as_ref() == b"abcdef", "other bytes");
    Ok(())
}

async fn stage_small_does_the_same(c: Context) -> Outcome {
    c.stage_bytes("taken", "other", b"x").await?;
    let files = vec![
        c.small("one", "a/1", b"first"),
        c.small("taken", "a/2", b"second"),
        c.small("three", "a/3", b""),
    ];
    let mut results = c.store.stage_small(files).await?;
    ensure!(results.len() == 3, "{} results", results.len());
    let third = results.remove(2)?;
    expect(results.remove(1), &[ErrorKind::AlreadyExists], "a token in use")?;
    let first = results.remove(0)?;
    ensure!(first.token == token("one") && first.size.0 == 5, "{first:?}");
    let files = [(first, "a/1"), (third, "a/3")]
        .map(|(staged, to)| crate::Publish::if_absent(staged.token, key(to), staged.identity));
    for result in c.store.publish(files.to_vec()).await? {
        result?;
    }
    ensure!(c.get("a/1").await?.as_ref() == b"first" && c.get("a/3").await?.is_empty(), "other bytes");
    ensure!(c.store.stage_small(Vec::new()).await?.is_empty(), "results for nothing");
    Ok(())
}

async fn writes_in_any_order(c: Context) -> Outcome {
    let bytes = Arc::new(content(5 << 20, 3));
    let stage: Arc<dyn crate::Stage> = c.stage("one", "file").await?.into();
    let part = 512 << 10;
    if !c.can().write.positioned {
        let late = stage.write_at(part as u64, Bytes::from_static(b"x")).await;
        return expect(late, &[ErrorKind::Unsupported], "a write after a gap");
    }
    let mut starts: Vec<usize> = (0..bytes.len()).step_by(part).collect();
    fastrand::Rng::with_seed(4).shuffle(&mut starts);
    stage.write_at(0, Bytes::from(vec![0xee; part])).await?;
    let mut writes = tokio::task::JoinSet::new();
    for start in starts {
        let (stage, bytes) = (stage.clone(), bytes.clone());
        let slice = move || Bytes::copy_from_slice(&bytes[start..(start + part).min(bytes.len())]);
        writes.spawn(async move { stage.write_at(start as u64, slice()).await });
    }
    while let Some(done) = writes.join_next().await {
        done.map_err(|error| super::Failure(error.to_string()))??;
    }
    let identity = stage.identity().cloned();
    drop(stage);
    c.store.publish_one(crate::Publish::if_absent(token("one"), key("file"), identity)).await?;
    ensure!(c.get("file").await? == *bytes, "other bytes");
    Ok(())
}

async fn writes_beyond_the_announced_size(c: Context) -> Outcome {
    let options = StageOptions::new(token("one")).key(key("file")).size(ByteCount(4));
    let stage = c.store.stage(options).await?;
    let kinds = [ErrorKind::InvalidInput];
    expect(stage.write_at(0, Bytes::from_static(b"12345")).await, &kinds, "a write that is too long")?;
    if c.can().write.positioned {
        expect(
            stage.write_at(u64::MAX, Bytes::from_static(b"1")).await,
            &kinds,
            "a write at the end of time",
        )?;
    }
    stage.write_at(0, Bytes::from_static(b"1234")).await?;
    ensure!(stage.finish().await?.size.0 == 4, "another size");
    Ok(())
}

async fn finish_of_an_incomplete_file(c: Context) -> Outcome {
    let options = StageOptions::new(token("one")).key(key("file")).size(ByteCount(4));
    let stage = c.store.stage(options).await?;
    stage.write_at(0, Bytes::from_static(b"123")).await?;
    expect(stage.finish().await, &[ErrorKind::Incomplete], "finish")?;
    if c.can().write.resumable {
        ensure!(c.store.staged(Some(FENCE)).await?.len() == 1, "it is not staged any more");
    }
    Ok(())
}

async fn staged_bytes_can_be_read_back(c: Context) -> Outcome {
    let stage = c.stage("one", "file").await?;
    stage.write_at(0, Bytes::from_static(b"abcdef")).await?;
    let read = stage.read_at(ByteRange::at(2, 100)).await;
    if !c.can().write.positioned {
        return expect(read, &[ErrorKind::Unsupported], "read back");
    }
    ensure!(read?.as_ref() == b"cdef", "other bytes");
    ensure!(stage.read_at(ByteRange::at(100, 5)).await?.is_empty(), "bytes behind the end");
    Ok(())
}

async fn staged_files_are_read_together(c: Context) -> Outcome {
    let bytes = content(5000, 7);
    c.stage_bytes("one", "a/file", &bytes).await?;
    c.stage_bytes("empty", "b/file", b"").await?;
    let wanted = vec![token("one"), token("absent"), token("empty")];
    let read = c.store.read_staged(wanted.clone(), ByteCount(6000)).await;
    if !c.can().write.resumable {
        return expect(read, &[ErrorKind::Unsupported], "reading where it is not claimed");
    }
    let read = read?.into_iter().collect::<crate::Result<Vec<_>>>()?;
    ensure!(read.len() == 3 && read[1].is_none(), "{read:?}");
    let found = read[0].as_ref();
    ensure!(found.is_some(), "what is staged is not there");
    let Some((staged, first)) = found else { return Ok(()) };
    ensure!(staged.token == token("one") && staged.size.0 == 5000 && first[..] == bytes[..], "{staged:?}");
    ensure!(staged.identity.is_some() == c.can().identities, "identity is {:?}", staged.identity);
    ensure!(
        read[2].as_ref().is_some_and(|(staged, bytes)| staged.size.0 == 0 && bytes.is_empty()),
        "{read:?}"
    );
    let part = c.store.read_staged(wanted, ByteCount(10)).await?.remove(0)?;
    ensure!(
        part.is_some_and(|(staged, part)| staged.size.0 == 5000 && part[..] == bytes[..10]),
        "other bytes"
    );
    // Nothing is begun by looking.
    ensure!(c.store.staged(Some(FENCE)).await?.len() == 2, "more is staged than was");
    let files = crate::Publish::if_absent(token("one"), key("a/file"), staged.identity.clone());
    c.store.publish_one(files).await?;
    ensure!(c.get("a/file").await?.as_ref() == &bytes[..], "other bytes");
    Ok(())
}

async fn staged_files_are_read_from_the_medium(c: Context) -> Outcome {
    let bytes = content(3_500_000, 9);
    let file = c.stage_bytes("one", "file", &bytes).await?;
    let read = c.store.read_back(&token("one")).await;
    if !c.can().read.medium {
        return expect(read.map(drop), &[ErrorKind::Unsupported], "read back from the medium");
    }
    let mut read = read?;
    ensure!(read.range().len() == bytes.len() as u64, "range is {}", read.range());
    let mut back = Vec::new();
    while let Some(piece) = read.next().await? {
        back.extend_from_slice(&piece);
    }
    ensure!(back == bytes, "other bytes");
    let missing = c.store.read_back(&token("another")).await.map(drop);
    expect(missing, &[ErrorKind::NotFound], "read back what is not staged")?;
    c.store.publish_one(file).await?;
    ensure!(c.get("file").await?.as_ref() == bytes, "other bytes when published");
    Ok(())
}

async fn markers_are_kept(c: Context) -> Outcome {
    let stage = c.stage("one", "file").await?;
    if !c.can().write.resumable {
        let written = stage.write_marker(Bytes::from_static(b"m")).await;
        expect(written, &[ErrorKind::Unsupported], "write a marker")?;
        return expect(stage.read_marker().await, &[ErrorKind::Unsupported], "read a marker");
    }
    ensure!(stage.read_marker().await?.is_none(), "a marker that nobody wrote");
    let large = Bytes::from(content(300_000, 5));
    stage.write_marker(large).await?;
    stage.write_marker(Bytes::from_static(b"second")).await?;
    drop(stage);
    let options = StageOptions::new(token("one")).key(key("file")).resume();
    let stage = c.store.stage(options.clone()).await?;
    ensure!(stage.read_marker().await?.is_some_and(|marker| marker.as_ref() == b"second"), "another marker");
    ensure!(c.store.staged(None).await?.len() == 1, "the marker is listed as a staged file");
    drop(stage);
    c.store.discard(&token("one")).await?;
    let stage = c.store.stage(options).await?;
    ensure!(stage.read_marker().await?.is_none(), "the marker outlived its file");
    Ok(())
}

async fn clone_is_independent(c: Context) -> Outcome {
    let bytes = content((3 << 20) + 7, 6);
    c.put("file", &bytes).await?;
    let options = StageOptions::new(token("copy")).key(key("copy"));
    let copy = c.store.clone_to_stage(&key("file"), options.clone()).await;
    if !c.can().write.clone {
        return expect(copy, &[ErrorKind::Unsupported], "clone");
    }
    let copy = copy?;
    copy.write_at(0, Bytes::from_static(b"changed")).await?;
    let staged = copy.finish().await?;
    c.store.publish_one(crate::Publish::if_absent(staged.token, key("copy"), staged.identity)).await?;
    ensure!(c.get("file").await? == bytes, "the original changed");
    let copy = c.get("copy").await?;
    ensure!(copy.starts_with(b"changed") && copy[7..] == bytes[7..], "the copy has other bytes");
    let again = c.store.clone_to_stage(&key("none"), options).await;
    expect(again, &[ErrorKind::NotFound], "clone of nothing")?;
    ensure!(c.store.staged(None).await?.is_empty(), "a failed clone stays");
    Ok(())
}

async fn discard_is_repeatable(c: Context) -> Outcome {
    let file = c.stage_bytes("one", "file", b"x").await?;
    ensure!(c.store.discard(&token("one")).await?, "it was not there");
    ensure!(!c.store.discard(&token("one")).await?, "it was there twice");
    expect(c.store.publish_one(file).await, &[ErrorKind::NotFound], "publish after discard")?;
    expect(c.store.stat(&key("file")).await, &[ErrorKind::NotFound], "stat")?;
    let file = c.stage_bytes("one", "file", b"y").await?;
    c.store.publish_one(file).await?;
    ensure!(!c.store.discard(&token("one")).await?, "a published file was still staged");
    ensure!(c.get("file").await?.as_ref() == b"y", "a published file was touched");
    Ok(())
}

async fn discard_of_a_fence_leaves_others(c: Context) -> Outcome {
    let file = c.stage_bytes("one", "a", b"x").await?;
    c.stage_bytes("two", "b", b"x").await?;
    let other = StageToken::new(Fence(8), "one")?;
    let staged = c.store.stage(StageOptions::new(other.clone()).key(key("c"))).await?.finish().await?;
    ensure!(c.store.discard_fence(FENCE).await? == 2, "another number was removed");
    ensure!(c.store.discard_fence(FENCE).await? == 0, "removed twice");
    ensure!(c.store.discard_fence(Fence(9)).await? == 0, "a fence that never was");
    expect(c.store.publish_one(file).await, &[ErrorKind::NotFound], "publish after its fence")?;
    let file = crate::Publish {
        token: other,
        key: key("c"),
        mode: PublishMode::IfAbsent,
        identity: staged.identity,
    };
    c.store.publish_one(file).await?;
    Ok(())
}

async fn staged_files_are_listed(c: Context) -> Outcome {
    c.stage_bytes("one", "a", b"abc").await?;
    let file = c.stage_bytes("two", "b", b"x").await?;
    c.store
        .stage(StageOptions::new(StageToken::new(Fence(8), "three")?).key(key("c")))
        .await?
        .finish()
        .await?;
    let of_fence = c.store.staged(Some(FENCE)).await?;
    ensure!(of_fence.len() == 2, "of a fence: {of_fence:?}");
    let one = of_fence.iter().find(|staged| staged.token == token("one"));
    ensure!(one.is_some_and(|one| one.size.0 == 3), "{one:?}");
    ensure!(c.store.staged(None).await?.len() == 3, "of all fences");
    c.store.publish_one(file).await?;
    ensure!(c.store.staged(None).await?.len() == 2, "a published file is still listed");
    Ok(())
}
