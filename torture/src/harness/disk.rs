//! A small disk, which can be filled.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

const BALLAST: &str = "ballast";
/// Allocated from large to small, until no piece fits.
const PIECES: [u64; 3] = [256 << 20, 4 << 20, 4 << 10];

/// A folder on its own file system in memory, or a plain folder where mounting is not allowed.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: TempDir,
    is_mounted: bool,
}

impl Disk {
    /// Creates a disk of that size. Returns also why it is only a plain folder, if so.
    pub(crate) fn create(bytes: u64) -> Result<(Self, Option<String>)> {
        let folder = tempfile::Builder::new()
            .prefix("oncebox-torture-")
            // The server runs as another user.
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("creating a folder for the database")?;
        // In memory, so that nothing else can fill it. Writable for the server's user too.
        let options = std::ffi::CString::new(format!("size={bytes},mode=1777"))?;
        let mounted = mount("oncebox", folder.path(), "tmpfs", MountFlags::empty(), Some(&*options));
        let error = mounted.as_ref().err();
        let why = error.map(|error| format!("a small file system cannot be mounted: {error}"));
        Ok((Self { folder, is_mounted: mounted.is_ok() }, why))
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join(BALLAST)
    }

    /// Fills the disk. Refused for a plain folder.
    pub(crate) fn fill(&self) -> Result<()> {
        anyhow::ensure!(self.is_mounted, "this would fill a disk that other programs use");
        let file = File::create(self.ballast()).context("creating the ballast")?;
        let mut size = 0;
        for piece in PIECES {
            while fallocate(&file, FallocateFlags::empty(), size, piece).is_ok() {
                size += piece;
            }
        }
        Ok(())
    }

    /// Frees the space again.
    pub(crate) fn clear(&self) -> Result<()> {
        match fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("removing the ballast")
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // Detached: a process that is still ending may have files open there.
            let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_refuses_writes_until_it_is_cleared() {
        let (disk, why) = Disk::create(8 << 20).unwrap();
        if why.is_some() {
            disk.fill().unwrap_err();
            return;
        }
        let file = disk.path().join("file");
        fs::write(&file, [1; 4096]).unwrap();
        disk.fill().unwrap();
        assert!(fs::write(disk.path().join("more"), [1; 4096]).is_err());
        disk.clear().unwrap();
        disk.clear().unwrap();
        fs::write(disk.path().join("more"), [1; 4096]).unwrap();
        assert_eq!(fs::read(&file).unwrap(), [1; 4096]);
        let path = disk.path().to_owned();
        drop(disk);
        assert!(!path.exists());
    }
}
