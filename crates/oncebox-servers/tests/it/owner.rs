//! A server whose owner is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::running::{another_process, eventually, is_another_process, runs};
use crate::server::{is_installed, server};

const TEST: &str = "owner::a_server_ends_with_an_owner_that_was_killed";

#[tokio::test]
async fn a_server_ends_with_an_owner_that_was_killed() {
    if is_another_process() {
        own_a_server().await;
        return;
    }
    if !is_installed(TEST) {
        return;
    }

    let mut owner = another_process(TEST).stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(owner.stdout.take().unwrap());
    let line =
        output.lines().map_while(Result::ok).find_map(|line| Some(line.split_once("server ")?.1.to_owned()));
    let line = line.expect("the owner reports its server");
    let (pid, folder) = line.split_once(' ').unwrap();
    let (pid, folder): (i32, PathBuf) = (pid.parse().unwrap(), folder.into());
    assert!(runs(pid) && folder.exists());

    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the server ends", || !runs(pid));
    eventually("its folder goes away", || !folder.exists());
}

#[allow(clippy::print_stdout, reason = "the first process reads it")]
async fn own_a_server() {
    let server = server(TEST).await.expect("the first process found PostgreSQL");
    println!("server {} {}", server.pid().expect("it runs"), server.folder().display());
    // Longer than the first process takes to kill this one, yet not forever should it fail to.
    thread::sleep(Duration::from_secs(900));
}
