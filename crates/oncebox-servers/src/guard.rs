//! Ends a process whose owner was killed and could not end it.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

/// A small shell that waits for the end of its standard input. Only the owner holds the other end, so the
/// system closes it however the owner ends; `SIGKILL` runs no destructor.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

// Arguments: the process, the signal that asks it to stop, the folder to remove (or nothing). Now an orphan,
// the process may stay a zombie for as long as its new parent likes.
const SCRIPT: &str = r#"
runs() { kill -0 "$1" || return; state=; read -r _ _ state _ < "/proc/$1/stat"; [ "$state" != Z ]; }
trap '' HUP INT TERM
read -r _
kill "-$2" "-$1"
tries=0
while runs "$1" && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
kill -KILL "-$1"
[ -z "$3" ] || rm -rf -- "$3"
"#;

impl Guard {
    /// Watches over the group of `process` until dropped. `folder` goes away with the process.
    pub(crate) fn over(process: Pid, stop: Signal, folder: Option<&Path>) -> Result<Guard> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(process.as_raw_nonzero().to_string())
            .arg(stop.as_raw().to_string())
            .arg(folder.map_or(OsStr::new(""), Path::as_os_str))
            // A signal to the owner's whole group must not kill its guard.
            .process_group(0)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a guard for a process")?;
        Ok(Guard { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Killed first: `wait` closes the pipe, which would start the shell's clean-up.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
