//! What may stand between a client and its server, and what may pretend to be one. All of it in threads of the test.

use super::resp::{Messages, Reply};
use super::url;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What happens to one request or to its reply.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Neither the request nor anything later arrives, and nothing is said.
    LoseRequest,
    /// So many bytes of the request arrive, then the connection is reset.
    CutRequest(usize),
    /// The reply is lost, and all that would follow it; the connection stays.
    Swallow,
    /// So many bytes of the reply arrive, then the connection is reset.
    Cut(usize),
    /// The connection ends properly where the reply should be.
    Close,
    /// The reply comes late.
    Delay(Duration),
    /// The reply comes byte by byte, at this distance.
    Trickle(Duration),
    /// Something else comes in its place.
    Instead(Vec<u8>),
    /// Something more comes with it.
    Surplus(Vec<u8>),
    /// Something more comes so much later.
    Later(Duration, Vec<u8>),
}

/// What is to happen, and when.
struct Rule {
    /// Only to this command.
    command: Option<&'static str>,
    /// After so many others.
    skip: usize,
    /// So often.
    times: usize,
    fault: Fault,
}

/// Ends a connection with RST at once, even if a forked process has it too.
fn reset(stream: &TcpStream) {
    let address = libc::sockaddr { sa_family: 0, sa_data: [0; 14] }; // AF_UNSPEC
    let length = libc::socklen_t::try_from(size_of_val(&address)).expect("16");
    // SAFETY: an address and its length.
    unsafe { libc::connect(stream.as_raw_fd(), &raw const address, length) };
}

/// Sleeps, but not beyond the end of the test.
fn sleep(time: Duration, closing: &AtomicBool) {
    let end = Instant::now() + time;
    while !closing.load(SeqCst) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(Duration::from_millis(5)));
    }
}

/// A port, and what was opened through it.
struct Hub {
    listener: TcpListener,
    open: Mutex<Vec<TcpStream>>,
    accepted: AtomicUsize,
    closing: AtomicBool,
}

impl Hub {
    fn new() -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        Arc::new(Self { listener, open: Mutex::default(), accepted: AtomicUsize::new(0), closing: false.into() })
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().expect("bound").port()
    }

    /// A second handle of a stream that is reset at the end.
    fn keep(&self, stream: &TcpStream) {
        stream.set_nodelay(true).expect("TCP");
        self.open.lock().expect("no thread has failed").push(stream.try_clone().expect("an fd"));
    }

    fn run(&self, mut serve: impl FnMut(TcpStream) -> JoinHandle<()>) {
        let mut threads = Vec::new();
        while let Ok((stream, _)) = self.listener.accept() {
            if self.closing.load(SeqCst) {
                break;
            }
            self.accepted.fetch_add(1, SeqCst);
            self.keep(&stream);
            threads.push(serve(stream));
        }
        self.reset_all();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn reset_all(&self) {
        for stream in self.open.lock().expect("no thread has failed").drain(..) {
            reset(&stream);
        }
    }

    fn close(&self, thread: &mut Option<JoinHandle<()>>) {
        self.closing.store(true, SeqCst);
        // SAFETY: a socket; whoever accepts on it is told.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.reset_all();
        let failed = thread.take().is_some_and(|thread| thread.join().is_err());
        assert!(!failed || thread::panicking(), "a thread between client and server has failed");
    }
}

/// Stands between clients and a server.
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    hub: Arc<Hub>,
    server: SocketAddr,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<String>>,
}

impl Proxy {
    /// In front of the server at this port of this machine.
    pub fn new(port: u16) -> Self {
        let server = (Ipv4Addr::LOCALHOST, port).into();
        let shared = Arc::new(Shared { hub: Hub::new(), server, rules: Mutex::default(), seen: Mutex::default() });
        let ours = shared.clone();
        let thread = thread::spawn(move || {
            ours.hub.run(|stream| {
                let shared = ours.clone();
                thread::spawn(move || drop(shared.serve(stream)))
            });
        });
        Self { shared, thread: Some(thread) }
    }

    /// The URL through it.
    pub fn url(&self, options: &str) -> String {
        url(self.shared.hub.port(), options)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.shared.hub.port()
    }

    fn add(&self, rule: Rule) {
        self.shared.rules().push(rule);
    }

    /// This happens to the next request, whichever it is.
    pub fn next(&self, fault: Fault) {
        self.nth(0, fault);
    }

    /// This happens to one request, after so many others.
    pub fn nth(&self, skip: usize, fault: Fault) {
        self.add(Rule { command: None, skip, times: 1, fault });
    }

    /// This happens to the next of these commands.
    pub fn at(&self, command: &'static str, fault: Fault) {
        self.add(Rule { command: Some(command), skip: 0, times: 1, fault });
    }

    /// This happens to each request.
    pub fn always(&self, fault: Fault) {
        self.add(Rule { command: None, skip: 0, times: usize::MAX, fault });
    }

    /// Nothing happens any more. False: something was still to happen.
    pub fn heal(&self) -> bool {
        let left = std::mem::take(&mut *self.shared.rules());
        left.iter().all(|rule| rule.times == 0 || rule.times > usize::MAX / 2)
    }

    /// All connections are reset.
    pub fn reset_all(&self) {
        self.shared.hub.reset_all();
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.hub.accepted.load(SeqCst)
    }

    /// The commands that came since the last time.
    pub fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.seen.lock().expect("no thread has failed"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.hub.close(&mut self.thread);
    }
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().expect("no thread has failed")
    }

    /// What is to happen to this request.
    fn choose(&self, command: &str) -> Option<Fault> {
        let mut rules = self.rules();
        let rule = rules.iter_mut().find(|rule| rule.times > 0 && rule.command.is_none_or(|name| name == command))?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.fault.clone())
    }

    fn serve(self: Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server).inspect_err(|_| reset(&client))?;
        self.hub.keep(&server);
        let (faults, replies) = mpsc::channel();
        let back = {
            let (shared, client, server) = (self.clone(), client.try_clone()?, server.try_clone()?);
            thread::spawn(move || {
                let _ = shared.pass_replies(server, &client, &replies);
                let _ = client.shutdown(Shutdown::Both);
            })
        };
        let end = self.pass_requests(&client, &server, &faults);
        let _ = server.shutdown(Shutdown::Both);
        drop(faults);
        let _ = back.join();
        end
    }

    fn pass_requests(
        &self,
        mut client: &TcpStream,
        mut server: &TcpStream,
        faults: &Sender<Option<Fault>>,
    ) -> io::Result<()> {
        let (mut messages, mut lost) = (Messages::default(), false);
        while messages.read(&mut client)? {
            while let Some((request, bytes)) = messages.next() {
                let command = name(&request);
                let fault = self.choose(&command);
                self.seen.lock().expect("no thread has failed").push(command);
                match fault {
                    Some(Fault::CutRequest(count)) => {
                        server.write_all(&bytes[..count.min(bytes.len())])?;
                        reset(client);
                        return Ok(());
                    }
                    Some(Fault::LoseRequest) => lost = true,
                    _ if lost => {}
                    fault => {
                        let _ = faults.send(fault); // whoever is gone does not mind
                        server.write_all(&bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn pass_replies(
        &self,
        mut server: TcpStream,
        mut client: &TcpStream,
        faults: &Receiver<Option<Fault>>,
    ) -> io::Result<()> {
        let mut messages = Messages::default();
        let mut silent = false;
        while messages.read(&mut server)? {
            while let Some((_, bytes)) = messages.next() {
                // A server may also speak without being asked, when it wants nobody more.
                match faults.try_recv().ok().flatten() {
                    Some(Fault::Swallow) => silent = true,
                    _ if silent => {}
                    Some(Fault::Cut(count)) => {
                        client.write_all(&bytes[..count.min(bytes.len())])?;
                        reset(client);
                        return Ok(());
                    }
                    Some(Fault::Close) => return Ok(()),
                    Some(Fault::Delay(time)) => {
                        sleep(time, &self.hub.closing);
                        client.write_all(&bytes)?;
                    }
                    Some(Fault::Trickle(pause)) => {
                        for byte in &bytes {
                            client.write_all(&[*byte])?;
                            sleep(pause, &self.hub.closing);
                        }
                    }
                    Some(Fault::Instead(other)) => client.write_all(&other)?,
                    Some(Fault::Surplus(more)) => client.write_all(&[bytes, more].concat())?,
                    Some(Fault::Later(time, more)) => {
                        client.write_all(&bytes)?;
                        sleep(time, &self.hub.closing);
                        client.write_all(&more)?;
                    }
                    Some(Fault::LoseRequest | Fault::CutRequest(_)) | None => client.write_all(&bytes)?,
                }
            }
        }
        Ok(())
    }
}

fn name(request: &Reply) -> String {
    match request {
        Reply::List(parts) => parts.first().map(Reply::text).unwrap_or_default().to_ascii_uppercase(),
        other => panic!("no command: {other:?}"),
    }
}

/// Pretends to be a server, and answers from a script.
pub struct Fake {
    hub: Arc<Hub>,
    thread: Option<JoinHandle<()>>,
}

/// What it is asked, and what it answers; nothing: it is silent.
type Script = dyn FnMut(&[String]) -> Vec<u8> + Send;

impl Fake {
    /// Says `greeting` to whoever connects, then answers as `script` does.
    pub fn greeting(greeting: &[u8], script: impl FnMut(&[String]) -> Vec<u8> + Send + 'static) -> Self {
        let hub = Hub::new();
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(script));
        let (ours, greeting) = (hub.clone(), greeting.to_vec());
        let thread = thread::spawn(move || {
            ours.run(|stream| {
                let (script, greeting) = (script.clone(), greeting.clone());
                thread::spawn(move || drop(answer(stream, &greeting, &script)))
            });
        });
        Self { hub, thread: Some(thread) }
    }

    /// Answers as `script` does.
    pub fn new(script: impl FnMut(&[String]) -> Vec<u8> + Send + 'static) -> Self {
        Self::greeting(b"", script)
    }

    /// Answers the first request with the first of these, and so on; what follows the last gets the last too.
    pub fn scripted(answers: &[&[u8]]) -> Self {
        let mut answers: VecDeque<_> = answers.iter().map(|answer| answer.to_vec()).collect();
        Self::new(move |_| {
            let answer = answers.pop_front().expect("there is always one");
            if answers.is_empty() {
                answers.push_back(answer.clone());
            }
            answer
        })
    }

    /// Its URL.
    pub fn url(&self, options: &str) -> String {
        url(self.hub.port(), options)
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.hub.accepted.load(SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.hub.close(&mut self.thread);
    }
}

fn answer(mut stream: TcpStream, greeting: &[u8], script: &Mutex<Script>) -> io::Result<()> {
    stream.write_all(greeting)?;
    let mut messages = Messages::default();
    while messages.read(&mut stream)? {
        while let Some((request, _)) = messages.next() {
            let words: Vec<_> = request.list().iter().map(Reply::text).collect();
            let answer = script.lock().expect("no script has failed")(&words);
            stream.write_all(&answer)?;
        }
    }
    Ok(())
}

/// A port whose kernel takes no more connections and refuses none: what a firewall looks like.
pub struct Blackhole {
    listener: TcpListener,
    _full: Vec<TcpStream>,
}

impl Blackhole {
    /// One.
    pub fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        // SAFETY: listening once more only makes the queue shorter.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().expect("bound");
        let patience = Duration::from_millis(100);
        let full: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&address, patience).ok()).collect();
        Self { listener, _full: full }
    }

    /// Its URL.
    pub fn url(&self, options: &str) -> String {
        url(self.listener.local_addr().expect("bound").port(), options)
    }
}
