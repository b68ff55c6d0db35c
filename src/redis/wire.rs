//! Commands and replies as bytes: RESP2.

use crate::hooks::{Mutant, mutant};

/// The longest reply that is read. Ours have some hundred bytes.
const REPLY_MAX: usize = 64 * 1024;
/// The most members a list may have.
const LIST_MAX: usize = 8;

/// Writes a command behind what is in `to`.
pub fn write_command(to: &mut Vec<u8>, arguments: &[&[u8]]) {
    to.reserve(arguments.iter().map(|argument| argument.len() + 16).sum::<usize>() + 16);
    write_head(to, b'*', arguments.len());
    for argument in arguments {
        write_head(to, b'$', argument.len());
        to.extend_from_slice(argument);
        to.extend_from_slice(b"\r\n");
    }
}

fn write_head(to: &mut Vec<u8>, kind: u8, number: usize) {
    to.push(kind);
    let mut power = 1;
    while number / power >= 10 {
        power *= 10;
    }
    while power > 0 {
        to.push(b"0123456789"[number / power % 10]);
        power /= 10;
    }
    to.extend_from_slice(b"\r\n");
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// A text.
    Text(Vec<u8>),
    /// A number.
    Integer(i64),
    /// An error, in the server's words. Its first word is its kind.
    Error(String),
    /// Some of these.
    List(Vec<Reply>),
}

impl Reply {
    /// Whether it is what a command says that did what it was to do.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Text(text) if text == b"OK")
    }

    /// A number, also as text.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Text(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// What was received is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

/// The replies of one connection, as they arrive.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
}

impl Replies {
    /// More bytes came.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next reply; None: it is not all there yet.
    ///
    /// # Errors
    /// What came is no reply, or one that is too long for any of ours.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> Result<Option<Reply>, Garbage> {
        match parse(&self.bytes, true)? {
            Some((reply, length)) => {
                self.bytes.drain(..length);
                Ok(Some(reply))
            }
            None if self.bytes.len() > REPLY_MAX => Err(Garbage),
            None => Ok(None),
        }
    }

    /// Whether nothing is left over.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets what came over a connection that is lost.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// The reply that `bytes` begin with, and its length; None: more must come. Of a form that ours don't have, such as a
/// list of a billion members, nothing is read.
fn parse(bytes: &[u8], may_be_list: bool) -> Result<Option<(Reply, usize)>, Garbage> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) || *kind == b'*' && !may_be_list {
        return Err(Garbage);
    }
    let Some(end) = bytes.iter().take(REPLY_MAX).position(|byte| *byte == b'\n') else { return Ok(None) };
    let head = end + 1;
    let line = bytes[1..head].strip_suffix(b"\r\n").ok_or(Garbage)?;
    let line = std::str::from_utf8(line).map_err(|_| Garbage)?;
    let number = || line.parse::<i64>().map_err(|_| Garbage);
    let size = |most| number().and_then(|size| usize::try_from(size).ok().filter(|size| *size <= most).ok_or(Garbage));
    Ok(match kind {
        b'+' => Some((Reply::Text(line.into()), head)),
        b'-' => Some((Reply::Error(line.to_owned()), head)),
        b':' => Some((Reply::Integer(number()?), head)),
        _ if line == "-1" => Some((Reply::Nil, head)),
        b'$' => {
            let after = head + size(REPLY_MAX)?;
            match bytes.get(after..after + 2) {
                None if mutant(Mutant::TailMayBeMissing) && bytes.len() >= after => {
                    Some((Reply::Text(bytes[head..after].to_vec()), after))
                }
                None => None,
                Some(b"\r\n") => Some((Reply::Text(bytes[head..after].to_vec()), after + 2)),
                Some(_) => return Err(Garbage),
            }
        }
        _ => {
            let (mut members, mut length) = (Vec::new(), head);
            for _ in 0..size(LIST_MAX)? {
                let Some((member, more)) = parse(&bytes[length..], false)? else { return Ok(None) };
                members.push(member);
                length += more;
            }
            Some((Reply::List(members), length))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.into())
    }

    fn all(pieces: &[&[u8]]) -> Result<Vec<Reply>, Garbage> {
        let (mut replies, mut read) = (Replies::default(), Vec::new());
        for piece in pieces {
            replies.feed(piece);
            while let Some(reply) = replies.next()? {
                read.push(reply);
            }
        }
        assert!(replies.is_empty(), "something is left over");
        Ok(read)
    }

    #[test]
    fn replies_may_be_cut_anywhere_and_glued() {
        let stream = b"+OK\r\n:-12\r\n$-1\r\n$0\r\n\r\n$4\r\na\r\nb\r\n-NOPERM no such right\r\n-ERR\r\n*-1\r\n*2\r\n$1\r\nx\r\n:7\r\n*0\r\n";
        let want = vec![
            text("OK"),
            Reply::Integer(-12),
            Reply::Nil,
            text(""),
            text("a\r\nb"),
            Reply::Error("NOPERM no such right".into()),
            Reply::Error("ERR".into()),
            Reply::Nil,
            Reply::List(vec![text("x"), Reply::Integer(7)]),
            Reply::List(Vec::new()),
        ];
        assert_eq!(all(&[stream]).as_ref(), Ok(&want));
        for cut in 0..stream.len() {
            assert_eq!(all(&[&stream[..cut], &stream[cut..]]).as_ref(), Ok(&want), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(all(&bytes).as_ref(), Ok(&want));
    }

    #[test]
    fn what_is_no_reply_of_ours_is_refused() {
        let long = format!("+{}", "x".repeat(REPLY_MAX));
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\0",
            b"$x\r\n",
            b"$-2\r\n",
            b"$65537\r\n",
            b"$99999999999999999999\r\n",
            b"$1\n",
            b":1x\r\n",
            b":1\n",
            b"*9\r\n",
            b"*1000000000\r\n",
            b"*1\r\n*1\r\n",
            b"%1\r\n",
            b"|0\r\n",
            b"$1\r\nxyz",
            b"+\xff\r\n",
            long.as_bytes(),
        ] {
            let mut replies = Replies::default();
            replies.feed(bytes);
            assert_eq!(replies.next(), Err(Garbage), "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_read_beyond() {
        arbtest::arbtest(|u| {
            let mut replies = Replies::default();
            while !u.is_empty() {
                let mut bytes: Vec<u8> = u.arbitrary()?;
                if u.ratio(1, 2)? {
                    bytes.insert(0, *u.choose(b"+-:$*")?);
                    bytes.extend(b"\r\n");
                }
                replies.feed(&bytes);
                while let Ok(Some(_)) = replies.next() {}
            }
            Ok(())
        });
    }

    #[test]
    fn commands_are_lists_of_texts() {
        let mut bytes = b"x".to_vec();
        write_command(&mut bytes, &[b"SET", b"", b"a\r\nb"]);
        assert_eq!(bytes, b"x*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n");
    }
}
