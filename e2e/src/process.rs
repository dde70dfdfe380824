//! Processes that never outlive us.
//!
//! Each runs in a process group of its own (so that helpers it forks are ended with it), is ended on drop, and carries
//! a parent-death signal for the case that we are killed before any drop runs.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

use crate::workdir::tail;

/// How long a process may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// A running child, its output in a log file.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; stdout and stderr go to `NAME.log` in `dir` (appended: a restart keeps the history).
    pub fn start(name: &str, mut command: Command, dir: &Path) -> Result<Process> {
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let program = command.get_program().to_owned();
        let child = spawn(command).with_context(|| format!("cannot start {name} ({})", program.display()))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error with the end of the log if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended ({status}); its log ends with:\n{}", self.name, tail(&self.log)),
            None => Ok(()),
        }
    }

    /// Asks the process to end, waits, and kills what is left of its group.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < GRACE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill()
    }

    /// Kills the process and its group at once.
    pub fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(0))
    }

    fn signal(&self, signal: Signal) {
        // The group may be gone already; its number stays reserved until we have waited for the child, and a group
        // that outlives the child keeps it.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A program of this workspace, in the directory of this one (or its parent, for tests: `target/debug/deps`).
pub fn sibling(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| anyhow!("{name} is not built; run this through `cargo xtask`"))
}

/// A path from an environment variable that `cargo xtask` sets.
pub fn path_from(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.ok_or_else(|| anyhow!("{variable} is not set; run this through `cargo xtask`"))
}

/// Starts `command` from a thread that lives as long as this process: the parent-death signal comes when the
/// *thread* that forked ends, and tests and runtimes end theirs early.
fn spawn(mut command: Command) -> Result<Child> {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    // SAFETY: the closure runs between fork and exec and makes one system call; it neither allocates nor locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let (reply, child) = mpsc::channel();
    SPAWNER.send((command, reply)).map_err(|_| anyhow!("the thread that starts processes is gone"))?;
    Ok(child.recv()??)
}
