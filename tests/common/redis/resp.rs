//! The protocol of Redis, just enough to look at a server and to stand between one and its clients.

use std::io::{self, Read, Write};
use std::time::Duration;

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK` and the like.
    Simple(String),
    /// The server's words.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing there.
    Nil,
    /// Several.
    List(Vec<Reply>),
}

impl Reply {
    /// As text, however it was sent; empty where there is nothing.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil => String::new(),
            Self::List(list) => list.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }

    /// The number it is.
    pub fn int(&self) -> i64 {
        let Self::Int(number) = self else { panic!("no number: {self:?}") };
        *number
    }

    /// The list it is.
    pub fn list(self) -> Vec<Reply> {
        let Self::List(list) = self else { panic!("no list: {self:?}") };
        list
    }

    /// Fails if it is an error.
    pub fn ok(self) -> Self {
        if let Self::Error(text) = &self {
            panic!("the server says {text}");
        }
        self
    }
}

/// A command as it goes over the wire.
pub fn command<P: AsRef<[u8]>>(parts: &[P]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The first message in `bytes`, a reply or a command, and its length; None: it is not whole yet.
pub fn parse(bytes: &[u8]) -> Option<(Reply, usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, begin) = (String::from_utf8_lossy(&bytes[1..end]), end + 2);
    let number = || line.parse::<i64>().unwrap_or_else(|_| panic!("no number: {line}"));
    Some(match bytes[0] {
        b'+' => (Reply::Simple(line.into_owned()), begin),
        b'-' => (Reply::Error(line.into_owned()), begin),
        b':' => (Reply::Int(number()), begin),
        b'$' | b'*' if number() < 0 => (Reply::Nil, begin),
        b'$' => {
            let end = begin + usize::try_from(number()).expect("a length");
            (bytes.len() >= end + 2).then(|| (Reply::Bulk(bytes[begin..end].to_vec()), end + 2))?
        }
        b'*' => {
            let (mut list, mut at) = (Vec::new(), begin);
            for _ in 0..number() {
                let (item, length) = parse(&bytes[at..])?;
                list.push(item);
                at += length;
            }
            (Reply::List(list), at)
        }
        _ => panic!("not RESP: {:?}", String::from_utf8_lossy(bytes)),
    })
}

/// Takes whole messages off a stream of bytes.
#[derive(Debug, Default)]
pub struct Messages(Vec<u8>);

impl Messages {
    /// Reads what has come. False: nothing will come any more.
    pub fn read(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        let mut chunk = [0; 65536];
        let count = loop {
            match stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.0.extend_from_slice(&chunk[..count]);
        Ok(count > 0)
    }

    /// The next whole message, with its bytes.
    pub fn next(&mut self) -> Option<(Reply, Vec<u8>)> {
        let (message, length) = (!self.0.is_empty()).then(|| parse(&self.0))??;
        let rest = self.0.split_off(length);
        Some((message, std::mem::replace(&mut self.0, rest)))
    }
}

/// What a connection is made of.
pub trait Stream: Read + Write + Send {
    /// How long a read may take.
    fn limit(&self, time: Duration) -> io::Result<()>;
}

impl Stream for std::net::TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Stream for std::os::unix::net::UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// A connection that shows what the server itself says.
pub struct Raw {
    stream: Box<dyn Stream>,
    messages: Messages,
}

impl Raw {
    /// Over this stream.
    pub fn new(stream: impl Stream + 'static) -> Self {
        stream.limit(Duration::from_secs(10)).expect("a limit");
        Self { stream: Box::new(stream), messages: Messages::default() }
    }

    /// Sends a command, and does not wait.
    pub fn send<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        self.stream.write_all(&command(parts)).expect("sent");
    }

    /// The next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        loop {
            if let Some((reply, _)) = self.messages.next() {
                return Ok(reply);
            }
            if !self.messages.read(&mut self.stream)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Asks, and tells what went wrong with the connection.
    pub fn try_ask<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> io::Result<Reply> {
        self.stream.write_all(&command(parts))?;
        self.receive()
    }

    /// Asks.
    pub fn ask<P: AsRef<[u8]>>(&mut self, parts: &[P]) -> Reply {
        self.try_ask(parts).expect("a reply")
    }
}
