//! Writing a plain file on several threads.
//!
//! One thread copies into the page cache at two or three gigabytes a second, less than a fast disk takes.
//! Each thread takes the next extent and writes it where it belongs, so the file grows nearly front to
//! back. The caller's thread writes nothing: it reports progress and says when to stop.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use super::{Planned, tile::Tiles};

/// Bytes that a thread writes before it takes the next extent.
const EXTENT_BYTES: u64 = 32 << 20;
const MOST_THREADS: usize = 16;

/// A stretch of one tensor.
struct Extent {
    /// Number of the tensor.
    no: usize,
    /// Bytes of the tensor.
    range: Range<u64>,
    /// Place in the file.
    at: u64,
}

/// Writes `header`, then each tensor at its place; `starts` are counted from the end of the header.
/// What lies between tensors is zero, as in any file that was never written there.
pub(super) fn write(
    file: &File,
    header: &[u8],
    tensors: &[Planned],
    starts: &[u64],
    tiles: &Tiles,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    file.write_all_at(header, 0)?;
    let mut done = header.len() as u64;
    progress(done)?;
    let extents = extents(tensors, starts, done);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let threads = thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            let (extents, next, stop) = (&extents, &next, &stop);
            scope.spawn(move || {
                while let Some(extent) = extents.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let written = write_extent(file, extent, tensors, tiles, |bytes| {
                        match stop.load(Ordering::Relaxed) {
                            true => false,
                            false => sender.send(Ok(bytes)).is_ok(),
                        }
                    });
                    if let Err(error) = written {
                        // Nobody listens any more only where another error came first.
                        let _ = sender.send(Err(error));
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut first_error = None;
        for result in receiver {
            // After an error the others only come to their end.
            if first_error.is_some() {
                continue;
            }
            let result = result.and_then(|bytes: u64| {
                done += bytes;
                progress(done)
            });
            if let Err(error) = result {
                stop.store(true, Ordering::Relaxed);
                first_error = Some(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    })
}

fn extents(tensors: &[Planned], starts: &[u64], data: u64) -> Vec<Extent> {
    let of_tensor = |(no, (tensor, &start)): (usize, (&Planned, &u64))| {
        let bytes = tensor.bytes();
        (0..bytes).step_by(EXTENT_BYTES as usize).map(move |from| Extent {
            no,
            range: from..bytes.min(from + EXTENT_BYTES),
            at: data + start + from,
        })
    };
    tensors.iter().zip(starts).enumerate().flat_map(of_tensor).collect()
}

/// Writes an extent piece by piece, as long as `go_on` is true of the bytes written.
fn write_extent(
    file: &File,
    extent: &Extent,
    tensors: &[Planned],
    tiles: &Tiles,
    go_on: impl Fn(u64) -> bool,
) -> io::Result<()> {
    let mut at = extent.at;
    tiles.write(tensors[extent.no].fill(), extent.no, extent.range.clone(), |piece| {
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
        match go_on(piece.len() as u64) {
            true => Ok(()),
            false => Err(io::Error::other("stopped")),
        }
    })
}
