//! A Redis server for the bench alone, and what it counts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::cpus::{Pinned, pin_process};

/// Ended with the value, where the bench has started it.
pub struct Server {
    pub url: String,
    /// `host:port`.
    pub address: String,
    /// For the reader of the report.
    pub about: String,
    process: Option<Child>,
}

impl Server {
    /// The one that REDIS_URL names, which nobody else may use meanwhile, or else a new one.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(bench: &Bench) -> Result<Self, String> {
        let mut server = match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => Self::named(url)?,
            _ => Self::start(bench)?,
        };
        let version = server.control()?.info("server")?.text("redis_version");
        server.about = format!("{version}, {}", server.about);
        Ok(server)
    }

    fn named(url: String) -> Result<Self, String> {
        let address = url.strip_prefix("redis://").map(|rest| rest.trim_end_matches('/'));
        let address = address.filter(|rest| rest.contains(':') && !rest.contains(['/', '@', '?']));
        let address = address.ok_or("REDIS_URL must be redis://HOST:PORT")?.to_owned();
        Ok(Self { url, address, about: "at REDIS_URL, placed as it is".to_owned(), process: None })
    }

    /// On a free port of 127.0.0.1, pinned to a CPU that is not that of its clients, where there are two.
    fn start(bench: &Bench) -> Result<Self, String> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.map_err(|error| format!("no free port: {error}"))?.port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]);
        command.arg(bench.dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: one plain call, allowed between fork and exec: the server ends with the bench, however that ends.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let cpu = bench.cpu(0);
        let pinned = Pinned::to(cpu)?;
        let process = command.spawn().map_err(|error| format!("no redis-server (package redis-server): {error}"))?;
        drop(pinned);
        let address = format!("127.0.0.1:{port}");
        let about =
            format!("the bench's own, pinned to CPU {cpu} where nothing else is said, over TCP on the loopback");
        let mut server = Self { url: format!("redis://{address}"), address, about, process: Some(process) };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = self.control().and_then(|mut control| control.ask(&["PING"]));
            match answer {
                Ok(pong) if pong == "PONG" => return Ok(()),
                _ if Instant::now() > end => return Err("the server that was started does not answer".to_owned()),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
            if let Some(Ok(Some(status))) = self.process.as_mut().map(Child::try_wait) {
                return Err(format!("the server that was started has ended: {status}"));
            }
        }
    }

    /// Moves the bench's own server; false: it is another's.
    pub fn pin(&self, cpu: usize) -> Result<bool, String> {
        let Some(process) = &self.process else { return Ok(false) };
        let number = libc::pid_t::try_from(process.id()).map_err(|error| error.to_string())?;
        pin_process(number, cpu).map(|()| true)
    }

    /// A connection of the bench's own, beside those that are measured.
    pub fn control(&self) -> Result<Control, String> {
        connect(&self.address).map(Control)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // Both fail only where it has ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub fn connect(address: &str) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    stream.map_err(|error| format!("{address}: {error}"))
}

/// A command as bytes.
pub fn command(arguments: &[&str]) -> Vec<u8> {
    let parts = arguments.iter().map(|part| format!("${}\r\n{part}\r\n", part.len()));
    format!("*{}\r\n{}", arguments.len(), parts.collect::<String>()).into_bytes()
}

pub struct Control(TcpStream);

impl Control {
    /// The reply to a command, which must be a text.
    pub fn ask(&mut self, arguments: &[&str]) -> Result<String, String> {
        self.exchange(arguments).map_err(|error| format!("{}: {error}", arguments[0]))
    }

    fn exchange(&mut self, arguments: &[&str]) -> std::io::Result<String> {
        self.0.write_all(&command(arguments))?;
        let head = self.line()?;
        match head.split_at_checked(1) {
            Some(("+", text)) => Ok(text.to_owned()),
            Some(("$", length)) => {
                let length: usize = length.parse().map_err(|_| std::io::Error::other(head.clone()))?;
                let mut text = vec![0; length + 2];
                self.0.read_exact(&mut text)?;
                text.truncate(length);
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            _ => Err(std::io::Error::other(head)),
        }
    }

    fn line(&mut self) -> std::io::Result<String> {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned())
    }

    pub fn info(&mut self, section: &str) -> Result<Info, String> {
        self.ask(&["INFO", section]).map(Info)
    }

    pub fn counts(&mut self) -> Result<Counts, String> {
        let (stats, commands, cpu) = (self.info("stats")?, self.info("commandstats")?, self.info("cpu")?);
        Ok(Counts {
            reads: stats.number("total_reads_processed"),
            sets: commands.calls("set"),
            scripts: commands.calls("evalsha") + commands.calls("eval"),
            cpu: cpu.number("used_cpu_user") + cpu.number("used_cpu_sys"),
        })
    }
}

pub struct Info(String);

impl Info {
    fn find(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub fn text(&self, name: &str) -> String {
        self.find(name).unwrap_or("of unknown version").trim().to_owned()
    }

    /// 0 for what has not happened yet: such commands have no line.
    fn number(&self, name: &str) -> f64 {
        self.find(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
    }

    fn calls(&self, command: &str) -> f64 {
        let line = self.find(&format!("cmdstat_{command}"));
        let calls = line.and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        calls.unwrap_or(0.0)
    }
}

/// What the server has done until now.
#[derive(Clone, Copy)]
pub struct Counts {
    /// How often it has read from a connection: once for each round trip.
    pub reads: f64,
    /// SET commands, also those inside of scripts.
    pub sets: f64,
    /// EVALSHA and EVAL commands.
    pub scripts: f64,
    /// Seconds of CPU time.
    pub cpu: f64,
}

impl Counts {
    /// What it has done since.
    pub fn since(self, before: Self) -> Self {
        /// Counting reads three times; the first of them is in the count itself.
        const OWN_READS: f64 = 3.0;
        Self {
            reads: self.reads - before.reads - OWN_READS,
            sets: self.sets - before.sets,
            scripts: self.scripts - before.scripts,
            cpu: self.cpu - before.cpu,
        }
    }
}
