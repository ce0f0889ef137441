//! Files that appear whole or not at all.
//!
//! A plain file is written under a temporary name beside its place and gets its name when it is complete; until then,
//! and after an error, a file that was there before stays as it is. Links are followed to the file they name. What is
//! no plain file (a pipe, a terminal, `/dev/null`) is written through and never replaced; bytes written there before an
//! error stay written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Temporary files of this process that are not complete.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Links that are followed before a chain of them counts as a ring, as Linux has it.
const MAX_LINKS: usize = 40;

/// A file that is being written. Dropped before [`complete`](Self::complete), it leaves nothing.
#[derive(Debug)]
pub struct OutputFile {
    to: Destination,
}

#[derive(Debug)]
enum Destination {
    /// A plain file, under its temporary name.
    Plain { file: File, temporary: PathBuf, place: PathBuf },
    /// Something that takes bytes as they come.
    Through(File),
    /// What this process has as its standard output already.
    Stdout(io::Stdout),
}

impl OutputFile {
    /// Starts a file.
    ///
    /// # Errors
    /// A place that is a folder, that may not be written, or whose folder does not exist.
    pub fn create(path: &Path) -> io::Result<Self> {
        let to = match resolve(path)? {
            Place::Missing(place) => plain(place)?,
            Place::File(place) => {
                // Asks whether the old file may be written; nothing is changed yet.
                let old = File::options().write(true).open(&place)?;
                let to = plain(place)?;
                if let (Destination::Plain { file, .. }, Ok(about)) = (&to, old.metadata()) {
                    // The new file is usable with other permissions too.
                    let _ = file.set_permissions(about.permissions());
                }
                to
            }
            Place::Stdout => Destination::Stdout(io::stdout()),
            // At the end: a descriptor may stand for a file that others write too.
            Place::Other(place) => Destination::Through(File::options().append(true).open(place)?),
        };
        Ok(Self { to })
    }

    /// Gives the file its name, in place of a file that has it already.
    ///
    /// # Errors
    /// What the system reports. The temporary file is removed then.
    pub fn complete(mut self) -> io::Result<()> {
        self.flush()?;
        let Destination::Plain { temporary, place, .. } = &self.to else { return Ok(()) };
        // Something else may have come to this place meanwhile.
        match fs::symlink_metadata(place) {
            Ok(about) if !about.is_file() => return Err(not_plain()),
            _ => {}
        }
        let mut unfinished = unfinished();
        fs::rename(temporary, place)?;
        unfinished.retain(|path| path != temporary);
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            Destination::Plain { file, .. } | Destination::Through(file) => file.write(bytes),
            Destination::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            Destination::Plain { file, .. } | Destination::Through(file) => file.flush(),
            Destination::Stdout(stdout) => stdout.flush(),
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        let Destination::Plain { temporary, .. } = &self.to else { return };
        let mut unfinished = unfinished();
        let before = unfinished.len();
        unfinished.retain(|path| path != temporary);
        if unfinished.len() < before {
            // Nothing can be done about a failure here, and the first error is the one to report.
            let _ = fs::remove_file(temporary);
        }
    }
}

/// Writes a whole file.
///
/// # Errors
/// As [`OutputFile::create`] and [`OutputFile::complete`]; what was there before stays then.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OutputFile::create(path)?;
    file.write_all(bytes)?;
    file.complete()
}

/// Removes the temporary files of this process, for a process that must end at once. No file can be started or completed
/// afterwards: a thread that tries waits for the end.
pub fn discard_unfinished() {
    let mut unfinished = unfinished();
    for path in unfinished.drain(..) {
        let _ = fs::remove_file(path);
    }
    std::mem::forget(unfinished);
}

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plain(place: PathBuf) -> io::Result<Destination> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(file_name) = place.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file name"));
    };
    loop {
        let mut name = std::ffi::OsString::from(".");
        name.push(file_name);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        name.push(format!(".{}-{number}.partial", std::process::id()));
        let temporary = place.with_file_name(name);
        let mut unfinished = unfinished();
        match File::create_new(&temporary) {
            // Left by a process that was killed and had the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                unfinished.push(temporary.clone());
                return Ok(Destination::Plain { file, temporary, place });
            }
        }
    }
}

/// What a path names after all links.
#[derive(Debug, PartialEq)]
enum Place {
    Missing(PathBuf),
    File(PathBuf),
    Other(PathBuf),
    Stdout,
}

fn resolve(path: &Path) -> io::Result<Place> {
    let mut place = path.to_owned();
    for _ in 0..MAX_LINKS {
        match descriptor(&place) {
            // Opened by its name it would start at the front of a file again.
            Some(1) => return Ok(Place::Stdout),
            Some(_) => return Ok(Place::Other(place)),
            None => {}
        }
        match fs::symlink_metadata(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Place::Missing(place));
            }
            Err(error) => return Err(error),
            Ok(about) if about.is_symlink() => {
                let target = fs::read_link(&place)?;
                // An absolute target takes the place of the folder.
                place = place.parent().unwrap_or(Path::new("")).join(target);
            }
            Ok(about) if about.is_file() => return Ok(Place::File(place)),
            Ok(about) if about.is_dir() => {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
            }
            Ok(_) => return Ok(Place::Other(place)),
        }
    }
    Err(io::Error::other("too many links"))
}

/// The number of the descriptor of this process that a path stands for, such as `/dev/fd/3`.
fn descriptor(path: &Path) -> Option<u32> {
    if !cfg!(unix) {
        return None;
    }
    if path == Path::new("/dev/stdout") {
        return Some(1);
    }
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let folder = path.parent()?;
    let own = || fs::canonicalize("/proc/self/fd").ok();
    let is_own = folder == Path::new("/dev/fd")
        || (folder.starts_with("/proc") && fs::canonicalize(folder).ok() == own());
    is_own.then_some(number)
}

fn not_plain() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "something that is no plain file is there now")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for each test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("clearway-output-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_unfinished_file_leaves_the_old_one() {
        let folder = Folder::new("unfinished");
        let place = folder.0.join("file");
        write(&place, b"old").unwrap();
        let mut file = OutputFile::create(&place).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(folder.names().len(), 2);
        drop(file);
        assert_eq!(folder.names(), ["file"]);
        assert_eq!(fs::read(&place).unwrap(), b"old");
        write(&place, b"new").unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"new");
        assert!(write(&folder.0, b"").is_err(), "a folder is no file");
        assert!(write(&folder.0.join("no/file"), b"").is_err());
        assert_eq!(folder.names(), ["file"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = Folder::new("links");
        let (target, link) = (folder.0.join("target"), folder.0.join("link"));
        symlink("target", &link).unwrap();
        // The first time the link leads nowhere.
        for text in ["one", "two"] {
            write(&link, text.as_bytes()).unwrap();
            assert!(link.symlink_metadata().unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), text);
            fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        }
        write(&link, b"three").unwrap();
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(folder.names(), ["link", "target"]);
        symlink("ring", folder.0.join("ring")).unwrap();
        assert!(write(&folder.0.join("ring"), b"").unwrap_err().to_string().contains("links"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn descriptors_of_the_process_are_no_files() {
        for stdout in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert_eq!(resolve(Path::new(stdout)).unwrap(), Place::Stdout, "{stdout}");
        }
        let null = Path::new("/dev/null");
        assert_eq!(resolve(null).unwrap(), Place::Other(null.into()));
        write(null, b"nothing").unwrap();
        assert!(!null.metadata().unwrap().is_file(), "it is a device still");
    }

    #[test]
    fn what_comes_to_the_place_meanwhile_is_not_replaced() {
        let folder = Folder::new("meanwhile");
        let place = folder.0.join("file");
        let file = OutputFile::create(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert!(file.complete().is_err());
        assert_eq!(folder.names(), ["file"]);
    }
}
