//! Trials of reading.

use std::os::unix::fs::FileExt as _;

use percale_core::{ByteCount, ByteRange};

use super::context::{Context, content, expect, key};
use super::{Outcome, ensure, trials};
use crate::{ErrorKind, FileRange, Generation, ReadOptions, StoreExt};

/// More than two pieces ahead of the one that is used, and not a multiple of a piece.
const LARGE: usize = (9 << 20) + 4321;

trials![
    read_gives_every_byte,
    read_of_ranges,
    read_from_the_file_itself,
    read_of_an_empty_file,
    read_of_a_missing_key_fails_at_once,
    read_of_a_collection,
    read_of_another_generation,
    small_files_are_read_together,
    read_never_mixes_two_versions,
];

async fn read_gives_every_byte(c: Context) -> Outcome {
    let bytes = content(LARGE, 1);
    c.put("large", &bytes).await?;
    for piece in [ByteCount::kib(64), ByteCount::mib(1), ByteCount::mib(4)] {
        let mut stream = c.store.read(&key("large"), ReadOptions::default().piece_size(piece)).await?;
        ensure!(stream.meta().size.0 == LARGE as u64, "size is {:?}", stream.meta());
        ensure!(stream.range() == ByteRange::at(0, LARGE as u64), "range is {}", stream.range());
        let mut got = Vec::new();
        while let Some(part) = stream.next().await? {
            ensure!(!part.is_empty() && part.len() as u64 <= piece.0, "a piece of {} bytes", part.len());
            got.extend_from_slice(&part);
        }
        ensure!(got == bytes, "the bytes differ with pieces of {piece}");
        ensure!(stream.next().await?.is_none(), "something came after the end");
    }
    Ok(())
}

async fn read_of_ranges(c: Context) -> Outcome {
    let bytes = content(LARGE, 2);
    c.put("large", &bytes).await?;
    let size = LARGE as u64;
    let ranges = [
        (0, 1),
        (0, size),
        (1, size),
        (size - 1, size),
        (size, size + 5),
        (size + 7, size + 9),
        (5, 5),
        (1 << 20, 3 << 20),
        ((1 << 20) - 1, (1 << 20) + 1),
        (100, u64::MAX),
    ];
    for (start, end) in ranges {
        let range = ByteRange::new(start, end).ok_or_else(|| super::Failure("a bad range".into()))?;
        let got = c.store.read_all(&key("large"), ReadOptions::range(range), ByteCount::mib(16)).await;
        if !c.can().read.ranges && start > 0 {
            expect(got, &[ErrorKind::Unsupported], "a range that does not begin at 0")?;
            continue;
        }
        let expected = &bytes[start.min(size) as usize..end.min(size) as usize];
        ensure!(got? == expected, "range {range} has other bytes");
    }
    Ok(())
}

async fn read_from_the_file_itself(c: Context) -> Outcome {
    let bytes = content(LARGE, 3);
    c.put("large", &bytes).await?;
    let start = if c.can().read.ranges { (1 << 20) - 1 } else { 0 };
    let range = ByteRange::at(start, LARGE as u64 - start);
    let mut stream = c.store.read(&key("large"), ReadOptions::range(range)).await?;
    let Some(FileRange { file, range: taken }) = stream.take_file().await else {
        // All that was asked for still comes.
        let mut got = Vec::new();
        while let Some(part) = stream.next().await? {
            got.extend_from_slice(&part);
        }
        ensure!(got == bytes[start as usize..], "the bytes differ where there is no file");
        return Ok(());
    };
    ensure!(taken == range, "{taken} is in the file, {range} was asked for");
    let mut got = vec![0; taken.len() as usize];
    let file = std::fs::File::from(file.try_clone().map_err(|error| super::Failure(error.to_string()))?);
    file.read_exact_at(&mut got, taken.start()).map_err(|error| super::Failure(error.to_string()))?;
    ensure!(got == bytes[start as usize..], "the file has other bytes");
    ensure!(stream.next().await?.is_none(), "something came after the file was taken");
    ensure!(stream.take_file().await.is_none(), "the file was taken twice");
    Ok(())
}

async fn read_of_an_empty_file(c: Context) -> Outcome {
    c.put("empty", b"").await?;
    ensure!(c.get("empty").await?.is_empty(), "it has bytes");
    let options = ReadOptions::range(ByteRange::at(0, 10));
    ensure!(
        c.store.read_all(&key("empty"), options, ByteCount(10)).await?.is_empty(),
        "a range of it has bytes"
    );
    Ok(())
}

async fn read_of_a_missing_key_fails_at_once(c: Context) -> Outcome {
    expect(c.store.read(&key("none"), ReadOptions::default()).await, &[ErrorKind::NotFound], "read")
}

async fn read_of_a_collection(c: Context) -> Outcome {
    if !c.can().collections {
        return Ok(());
    }
    c.store.mkdir(&key("a")).await?;
    expect(c.store.read(&key("a"), ReadOptions::default()).await, &[ErrorKind::IsACollection], "read")
}

async fn read_of_another_generation(c: Context) -> Outcome {
    if !c.can().generations {
        return Ok(());
    }
    let published = c.put("file", b"x").await?;
    let other = ReadOptions::default().if_generation(Some(Generation::new("another")));
    expect(c.store.read(&key("file"), other).await, &[ErrorKind::Changed], "read of another generation")?;
    let same = ReadOptions::default().if_generation(published.meta.generation);
    ensure!(c.store.read_all(&key("file"), same, ByteCount(1)).await?.as_ref() == b"x", "other bytes");
    Ok(())
}

async fn small_files_are_read_together(c: Context) -> Outcome {
    let (one, large) = (content(5000, 5), content((1 << 20) + 1, 6));
    let published = c.put("a/one", &one).await?;
    c.put("b/empty", b"").await?;
    c.put("c/large", &large).await?;
    let small = ReadOptions::default().piece_size(ByteCount::kib(64));
    let begin = ReadOptions { range: Some(ByteRange::at(0, 100)), ..small.clone() };
    let same = small.clone().if_generation(published.meta.generation);
    let another = small.clone().if_generation(Some(Generation::new("another")));
    let files = [
        ("a/one", small.clone()),
        ("none", small.clone()),
        ("b/empty", small.clone()),
        ("c/large", begin),
        ("c/large", small.clone()),
        ("c/large", ReadOptions::default().piece_size(ByteCount::mib(2))),
        ("a/one", same),
        ("a/one", another),
        (".percale/stage/7/one", small),
    ];
    let files: Vec<_> = files.into_iter().map(|(name, options)| (key(name), options)).collect();
    let mut read = c.store.read_small(files).await?.into_iter();
    let mut next = || read.next().ok_or_else(|| super::Failure("a result is missing".into()));
    ensure!(next()??[..] == one[..], "other bytes");
    expect(next()?, &[ErrorKind::NotFound], "a missing key among others")?;
    ensure!(next()??.is_empty(), "an empty file has bytes");
    ensure!(next()??[..] == large[..100], "a part has other bytes");
    expect(next()?, &[ErrorKind::InvalidInput], "more than a piece")?;
    ensure!(next()??[..] == large[..], "one large piece has other bytes");
    ensure!(next()??[..] == one[..], "other bytes of the same generation");
    match c.can().generations {
        true => expect(next()?, &[ErrorKind::Changed], "another generation")?,
        false => drop(next()?),
    }
    expect(next()?, &[ErrorKind::InvalidKey], "what is staged")?;
    ensure!(c.store.read_small(Vec::new()).await?.is_empty(), "nothing gave something");
    Ok(())
}

async fn read_never_mixes_two_versions(c: Context) -> Outcome {
    let Some(tamper) = c.tamper.clone().filter(|_| c.can().generations) else { return Ok(()) };
    let (old, new) = (vec![b'o'; 24 << 20], vec![b'n'; 24 << 20]);
    c.put("file", &old).await?;
    let mut stream = c.store.read(&key("file"), ReadOptions::default()).await?;
    let first = stream.next().await?.unwrap_or_default();
    ensure!(
        !first.is_empty() && first.iter().all(|byte| *byte == b'o'),
        "the first piece is not the old file's"
    );
    tamper(&key("file"), &new);
    let mut total = first.len();
    let ended = loop {
        match stream.next().await {
            Ok(Some(part)) => {
                ensure!(
                    part.iter().all(|byte| *byte == b'o'),
                    "a piece of the new file after one of the old"
                );
                total += part.len();
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if ended.is_ok() {
        // Allowed: the storage still had all of the old file.
        ensure!(total == old.len(), "it ended without an error after {total} bytes");
        return Ok(());
    }
    ensure!(total < old.len(), "all bytes came, and then {ended:?}");
    expect(ended, &[ErrorKind::Changed], "the end of the read")?;
    expect(stream.next().await, &[ErrorKind::Changed], "after the failure")
}
