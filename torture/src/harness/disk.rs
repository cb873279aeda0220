//! A disk of a known size, which can be filled up.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

const BALLAST: &str = "ballast";
/// From large to small, until nothing more fits.
const PIECES: [u64; 3] = [256 << 20, 4 << 20, 4 << 10];

/// A folder on a file system of its own, in memory; or a plain one, where mounting is not allowed.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: TempDir,
    is_own: bool,
}

impl Disk {
    /// A disk of so many bytes; why it is only a folder, if so.
    pub(crate) fn create(bytes: u64) -> Result<(Self, Option<String>)> {
        let folder = tempfile::Builder::new()
            .prefix("oncebox-torture-")
            // The server runs as another user.
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("creating a folder for the database")?;
        let options = std::ffi::CString::new(format!("size={bytes},mode=1777"))?;
        let mounted = mount("oncebox", folder.path(), "tmpfs", MountFlags::empty(), Some(&*options));
        let why =
            mounted.as_ref().err().map(|error| format!("a small file system cannot be mounted: {error}"));
        Ok((Self { folder, is_own: mounted.is_ok() }, why))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join(BALLAST)
    }

    /// Leaves no space at all. Only on a disk of its own.
    pub(crate) fn fill(&self) -> Result<()> {
        anyhow::ensure!(self.is_own, "this would fill up a disk that others use");
        let file = File::create(self.ballast()).context("creating the ballast")?;
        let mut size = 0;
        for piece in PIECES {
            while fallocate(&file, FallocateFlags::empty(), size, piece).is_ok() {
                size += piece;
            }
        }
        Ok(())
    }

    /// Gives the space back.
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
        if self.is_own {
            let _ = unmount(self.folder.path(), UnmountFlags::DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_takes_nothing_until_it_is_cleared() {
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
