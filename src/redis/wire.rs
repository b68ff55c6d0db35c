//! Commands and replies as bytes: RESP2, by the crate `redis`, which is given one whole reply at a time.

use redis::Value;

/// The longest reply that is read. Ours have some hundred bytes.
const REPLY_MAX: usize = 64 * 1024;
/// The most members a list may have.
const LIST_MAX: usize = 8;

/// Writes a command behind what is in `to`.
pub fn write_command(to: &mut Vec<u8>, arguments: &[&[u8]]) {
    let mut command = redis::Cmd::with_capacity(arguments.len(), arguments.iter().map(|part| part.len()).sum());
    for argument in arguments {
        command.arg(*argument);
    }
    to.extend_from_slice(&command.get_packed_command());
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
        let Some(length) = reply_length(&self.bytes, true)? else {
            return if self.bytes.len() > REPLY_MAX { Err(Garbage) } else { Ok(None) };
        };
        let value = redis::parse_redis_value(&self.bytes[..length]).map_err(|_| Garbage)?;
        self.bytes.drain(..length);
        reply(value).map(Some)
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

/// The length of the reply that `bytes` begin with; None: more must come. So the parser never sees a piece of a reply,
/// nor one of a form that ours don't have, such as a list of a billion members.
fn reply_length(bytes: &[u8], may_be_list: bool) -> Result<Option<usize>, Garbage> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) || *kind == b'*' && !may_be_list {
        return Err(Garbage);
    }
    let Some(end) = bytes.iter().take(REPLY_MAX).position(|byte| *byte == b'\n') else { return Ok(None) };
    let head = end + 1;
    let number = || std::str::from_utf8(&bytes[1..head]).ok()?.strip_suffix("\r\n")?.parse::<i64>().ok();
    match kind {
        b'$' | b'*' => match (kind, number().ok_or(Garbage)?) {
            (_, -1) => Ok(Some(head)),
            (b'$', size) => {
                let size = usize::try_from(size).ok().filter(|size| *size <= REPLY_MAX).ok_or(Garbage)?;
                let length = head + size + 2;
                Ok((bytes.len() >= length).then_some(length))
            }
            (_, count) => {
                let count = usize::try_from(count).ok().filter(|count| *count <= LIST_MAX).ok_or(Garbage)?;
                let mut length = head;
                for _ in 0..count {
                    match reply_length(&bytes[length..], false)? {
                        Some(member) => length += member,
                        None => return Ok(None),
                    }
                }
                Ok(Some(length))
            }
        },
        _ => Ok(Some(head)),
    }
}

fn reply(value: Value) -> Result<Reply, Garbage> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Okay => Reply::Text(b"OK".to_vec()),
        Value::SimpleString(text) => Reply::Text(text.into_bytes()),
        Value::BulkString(text) => Reply::Text(text),
        Value::Int(number) => Reply::Integer(number),
        Value::ServerError(error) => {
            let detail = error.details().map(|detail| format!(" {detail}")).unwrap_or_default();
            Reply::Error(format!("{}{detail}", error.code()))
        }
        Value::Array(members) => Reply::List(members.into_iter().map(reply).collect::<Result<_, _>>()?),
        _ => return Err(Garbage),
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
