//! The folder for all files of a server.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::account::OsAccount;

/// A temporary folder that only its owner may enter; removed when dropped.
#[derive(Debug)]
pub struct PrivateFolder {
    dir: TempDir,
}

impl PrivateFolder {
    /// Creates the folder, named after `server`, for `owner`, or for the current user without one.
    pub fn create(server: &str, owner: Option<OsAccount>) -> Result<PrivateFolder> {
        Self::create_in(&std::env::temp_dir(), server, owner)
    }

    /// The same inside another folder.
    pub fn create_in(parent: &Path, server: &str, owner: Option<OsAccount>) -> Result<PrivateFolder> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("oncebox-{server}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)
            .context("creating a private folder")?;
        if let Some(OsAccount { uid, gid }) = owner {
            chown(dir.path(), Some(uid), Some(gid))
                .with_context(|| format!("giving {} to user {uid}", dir.path().display()))?;
        }
        Ok(PrivateFolder { dir })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_folder_belongs_to_its_owner_alone_and_goes_away() {
        let owner = OsAccount::unprivileged(&["nobody"]).unwrap();
        let folder = PrivateFolder::create("test", owner).unwrap();
        let path = folder.path().to_owned();
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o700);
        if let Some(owner) = owner {
            assert_eq!((metadata.uid(), metadata.gid()), (owner.uid, owner.gid));
        }
        drop(folder);
        assert!(!path.exists());
    }
}
