//! Running other programs: one way to start them, to name them in errors and to keep their closing lines.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::artifacts;

/// The cargo that started us, in the repository's root.
pub(crate) fn cargo<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo describes *this* package to the program it runs; build scripts must not mistake it for theirs.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR") {
            command.env_remove(name);
        }
    }
    command.current_dir(artifacts::root()).args(args);
    command
}

/// Runs to the end, its output going where ours goes; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Like [`run`], and returns the lines that close a test run ("test result: …", "Summary …") as well as success, so
/// that they can be repeated at the very end.
pub(crate) fn run_tests(command: &mut Command) -> Result<(bool, Vec<String>)> {
    let shown = shown(command);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let (closing, received) = mpsc::channel();
    let readers = [
        child.stdout.take().map(|out| forward(out, closing.clone(), false)),
        child.stderr.take().map(|err| forward(err, closing, true)),
    ];
    let success = child.wait().with_context(|| format!("cannot wait for `{shown}`"))?.success();
    for reader in readers.into_iter().flatten() {
        // A reader ends when its pipe does.
        let _ = reader.join();
    }
    Ok((success, received.into_iter().collect()))
}

/// Whether `program` answers to `--version`.
pub(crate) fn available(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn forward(
    from: impl Read + Send + 'static,
    closing: mpsc::Sender<String>,
    to_stderr: bool,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { break };
            if to_stderr {
                eprintln!("{line}");
            } else {
                println!("{line}");
            }
            let text = line.trim();
            let closes = text.starts_with("test result:") || text.starts_with("Summary [");
            if closes && !text.contains(" 0 passed; 0 failed; 0 ignored") {
                let _ = closing.send(text.to_owned());
            }
        }
    })
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut shown = program.to_string_lossy().into_owned();
    for arg in command.get_args() {
        shown.push(' ');
        shown.push_str(&arg.to_string_lossy());
    }
    shown
}
