//! Options and URLs. The table here is the only one: parser, texts and the README's table go by it.

use crate::error::ConfigFault;
use crate::policy::{MAX_MS, NS_PER_MS, milliseconds};
use redis::{ConnectionAddr, IntoConnectionInfo};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One option, as `buflock_config_set` and URL parameters know it.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What it is when nobody says anything.
    pub default: &'static str,
    /// What it may be.
    pub want: &'static str,
}

const fn row(name: &'static str, default: &'static str, want: &'static str) -> Row {
    Row { name, default, want }
}

const SOME_TIME: &str = "a number of seconds above 0 and up to 2592000 (30 days), such as 0.5";
const ANY_TIME: &str = "a number of seconds from 0 to 2592000 (30 days), such as 0.5";
const SWITCH: &str = "on or off";
const PATH: &str = "a path that begins with /";

/// All options. Those of the other backend are checked and then ignored, so that one configuration serves any URL.
pub const OPTIONS: [Row; 22] = [
    row("namespace", "buflock:", "any text but an empty one"),
    row("ttl", "60", SOME_TIME),
    row("timeout", "5", ANY_TIME),
    row("step", "0.001", SOME_TIME),
    row("ratio", "2", "a number from 1 to 1000"),
    row("max_step", "0.1", SOME_TIME),
    row("connect_timeout", "0.25", SOME_TIME),
    row("command_timeout", "0.25", SOME_TIME),
    row("budget", "0.5", SOME_TIME),
    row("breaker", "3", "a whole number of failures from 1 on, or off"),
    row("fencing", "off", SWITCH),
    row("nudge", "on", SWITCH),
    row("label", "", "1 to 64 printable ASCII characters without blanks"),
    row("key", "hash", "hash or raw"),
    row("dir", "", PATH),
    row("size", "1M", "a number of bytes from 16k to 64G, such as 65536, 64k or 1M"),
    row("mode", "", "0600 or 0660"),
    row("user", "", "any UTF-8 text"),
    row("password", "", "any UTF-8 text"),
    row("password_file", "", PATH),
    row("db", "", "a whole number from 0 on"),
    row("ca_file", "", PATH),
];

/// The smallest and the largest table, in bytes.
const SIZES: std::ops::RangeInclusive<u64> = (16 << 10)..=(64 << 30);

/// What the options say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What all keys are under.
    pub namespace: Vec<u8>,
    /// The default lease.
    pub ttl_ms: u32,
    /// The default wait.
    pub timeout_ms: u32,
    /// Stepped waiting: the first pause.
    pub step_ms: u32,
    /// Stepped waiting: how pauses grow.
    pub ratio: f64,
    /// Stepped waiting: the longest pause.
    pub max_step_ms: u32,
    /// Redis: the longest time that connecting may take, name resolution and AUTH included.
    pub connect_timeout_ms: u32,
    /// Redis: the longest time that one command may take.
    pub command_timeout_ms: u32,
    /// Redis: the longest time that a call that does not wait may take.
    pub budget_ms: u32,
    /// Redis: after how many failures calls fail at once; None never.
    pub breaker: Option<u32>,
    /// Redis: whether holds are numbered. In shared memory they always are.
    pub fencing: bool,
    /// Redis: whether a wait ends at its time by sending the next command, which makes the server look.
    pub nudge: bool,
    /// Redis: what inspect shows of us.
    pub label: Option<String>,
    /// Whether the caller's keys are the stored keys.
    pub raw_keys: bool,
    /// Where the table is; None by the rule of place.
    pub dir: Option<PathBuf>,
    /// Size of a table that is made, in bytes.
    pub size: u64,
    /// Permission bits of a table that is made; None by its directory.
    pub mode: Option<u32>,
    /// Redis: user name.
    pub user: Option<String>,
    /// Redis: where the password comes from.
    pub password: Option<Secret>,
    /// Redis: database number.
    pub db: Option<u32>,
    /// Redis: the certificates that are trusted.
    pub ca_file: Option<PathBuf>,
}

/// A password, or where it is. Its Debug says neither.
#[derive(Clone)]
pub enum Secret {
    /// The password.
    Text(String),
    /// A file that is read at each connect.
    File(PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self {
            namespace: Vec::new(),
            ttl_ms: 0,
            timeout_ms: 0,
            step_ms: 0,
            ratio: 0.0,
            max_step_ms: 0,
            connect_timeout_ms: 0,
            command_timeout_ms: 0,
            budget_ms: 0,
            breaker: None,
            fencing: false,
            nudge: false,
            label: None,
            raw_keys: false,
            dir: None,
            size: 0,
            mode: None,
            user: None,
            password: None,
            db: None,
            ca_file: None,
        };
        for row in OPTIONS.iter().filter(|row| !row.default.is_empty()) {
            let taken = settings.assign(row.name, row.default.as_bytes());
            debug_assert!(taken.is_some(), "the default of {}", row.name);
        }
        settings
    }
}

impl Settings {
    /// Sets an option. Namespaces are bytes; all other values are UTF-8.
    ///
    /// # Errors
    /// An unknown option, or a value it cannot have; nothing is changed then.
    pub fn set(&mut self, option: &str, value: &[u8]) -> Result<(), ConfigFault> {
        let Some(row) = OPTIONS.iter().find(|row| row.name == option) else {
            return Err(ConfigFault::Unknown { option: cut(option), nearest: nearest(option) });
        };
        let secret = row.name.starts_with("password"); // also its file: a password may have been put there
        self.assign(row.name, value).ok_or_else(|| ConfigFault::Value {
            option: row.name,
            value: (!secret).then(|| cut(&String::from_utf8_lossy(value))),
            want: row.want,
        })
    }

    /// None: the option cannot have this value.
    fn assign(&mut self, option: &str, value: &[u8]) -> Option<()> {
        if option == "namespace" {
            let given = !value.is_empty();
            if given {
                self.namespace = value.to_vec();
            }
            return given.then_some(());
        }
        let text = std::str::from_utf8(value).ok()?;
        match option {
            "ttl" => self.ttl_ms = some_time(text)?,
            "timeout" => self.timeout_ms = milliseconds(text)?,
            "step" => self.step_ms = some_time(text)?,
            "ratio" => self.ratio = text.parse().ok().filter(|ratio| (1.0..=1000.0).contains(ratio))?,
            "max_step" => self.max_step_ms = some_time(text)?,
            "connect_timeout" => self.connect_timeout_ms = some_time(text)?,
            "command_timeout" => self.command_timeout_ms = some_time(text)?,
            "budget" => self.budget_ms = some_time(text)?,
            "breaker" if text == "off" => self.breaker = None,
            "breaker" => self.breaker = Some(text.parse().ok().filter(|failures| *failures > 0)?),
            "fencing" => self.fencing = switch(text)?,
            "nudge" => self.nudge = switch(text)?,
            "label" => self.label = Some(label(text)?),
            "key" if text == "raw" => self.raw_keys = true,
            "key" if text == "hash" => self.raw_keys = false,
            "dir" => self.dir = Some(path(text)?),
            "size" => self.size = size(text)?,
            "mode" => self.mode = Some(u32::from_str_radix(text, 8).ok().filter(|mode| [0o600, 0o660].contains(mode))?),
            "user" => self.user = Some(text.to_owned()),
            "password" => self.password = Some(Secret::Text(text.to_owned())),
            "password_file" => self.password = Some(Secret::File(path(text)?)),
            "db" => self.db = Some(text.parse().ok()?),
            "ca_file" => self.ca_file = Some(path(text)?),
            _ => return None,
        }
        Some(())
    }
}

/// Stepped waiting: pauses that grow.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    step_ms: u32,
    ratio: f64,
    max_step_ms: u32,
}

impl Settings {
    /// How stepped waiting goes.
    pub fn steps(&self) -> Steps {
        Steps { step_ms: self.step_ms, ratio: self.ratio, max_step_ms: self.max_step_ms }
    }
}

impl Steps {
    /// The length of the pause number `count`, counted from 0, in ns.
    pub fn pause_ns(&self, count: u32) -> u64 {
        let grown = f64::from(self.step_ms) * self.ratio.powi(i32::try_from(count).unwrap_or(i32::MAX));
        // A float beyond the range becomes the largest number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ms = grown.min(f64::from(self.max_step_ms)) as u64;
        ms.max(1) * NS_PER_MS
    }
}

fn some_time(text: &str) -> Option<u32> {
    milliseconds(text).filter(|ms| (1..=MAX_MS).contains(ms))
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn label(text: &str) -> Option<String> {
    let good = (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    good.then(|| text.to_owned())
}

fn path(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && !text.contains('\0')).then(|| PathBuf::from(text))
}

fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1 << 10),
        b'm' | b'M' => (&text[..text.len() - 1], 1 << 20),
        b'g' | b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+'))?;
    number.checked_mul(unit).filter(|size| SIZES.contains(size))
}

/// A value as a text may show it.
fn cut(text: &str) -> String {
    const SHOWN: usize = 80;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN).chain("...".chars()).collect()
}

/// The option whose name is the fewest edits away.
fn nearest(name: &str) -> &'static str {
    let name: Vec<u8> = name.bytes().take(64).collect();
    OPTIONS.iter().min_by_key(|row| edits(&name, row.name.as_bytes())).map_or("", |row| row.name)
}

/// Levenshtein distance.
fn edits(from: &[u8], to: &[u8]) -> usize {
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (row, a) in from.iter().enumerate() {
        let mut diagonal = last[0];
        last[0] = row + 1;
        for (column, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != b);
            diagonal = last[column + 1];
            last[column + 1] = change.min(diagonal + 1).min(last[column] + 1);
        }
    }
    last[to.len()]
}

/// What a URL asks for.
#[derive(Clone, Debug)]
pub enum Target {
    /// A table in shared memory, by name.
    Shm(String),
    /// A server; None: a caller's own client carries the commands.
    Redis(Option<Address>),
    /// Every acquire is granted.
    Off,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// On a host.
    Tcp {
        /// Its name or number.
        host: String,
        /// The port.
        port: u16,
        /// Whether to speak TLS.
        tls: bool,
    },
    /// On this host, behind a Unix socket.
    Unix(PathBuf),
}

/// Reads a URL. Its parameters change `settings`.
///
/// # Errors
/// A URL that cannot be used. The text never quotes it whole, since it may hold a password.
pub fn parse_url(url: &str, settings: &mut Settings) -> Result<Target, ConfigFault> {
    let (front, query) = url.split_once('?').unwrap_or((url, ""));
    let target = target(front, settings)?;
    let mut given = Vec::new();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let Some((name, value)) = parameter.split_once('=') else {
            return Err(ConfigFault::Parameter); // it may be what is behind a & in a password
        };
        let name = decode(name).and_then(|name| String::from_utf8(name).ok());
        let name = name.ok_or(ConfigFault::Escape("parameter name"))?;
        let value = decode(value).ok_or(ConfigFault::Escape("parameter value"))?;
        settings.set(&name, &value).map_err(|fault| match fault {
            // It may be what is behind a & or a ? in a password.
            ConfigFault::Unknown { nearest, .. } if query.contains("password") || query.contains('@') => {
                ConfigFault::Unknown { option: "...".to_owned(), nearest }
            }
            fault => fault,
        })?;
        if given.contains(&name) {
            return Err(ConfigFault::Twice(name));
        }
        given.push(name);
    }
    Ok(target)
}

fn target(front: &str, settings: &mut Settings) -> Result<Target, ConfigFault> {
    if let Some(path) = front.strip_prefix("unix://") {
        return unix_address(path).map(Some).map(Target::Redis);
    }
    for (scheme, tls) in [("redis://", false), ("rediss://", true)] {
        if let Some(server) = front.strip_prefix(scheme) {
            return tcp_address(server, tls, settings).map(Some).map(Target::Redis);
        }
    }
    match front.split_once(':') {
        Some(("shm", "")) => Ok(Target::Shm("default".to_owned())),
        Some(("shm", name)) if is_table_name(name) => Ok(Target::Shm(name.to_owned())),
        Some(("shm", name)) => Err(ConfigFault::Name(cut(name))),
        Some(("redis", "")) => Ok(Target::Redis(None)),
        Some(("redis", _)) => Err(ConfigFault::Server),
        Some(("off", "")) => Ok(Target::Off),
        Some(("off", _)) => Err(ConfigFault::OffName),
        other => Err(ConfigFault::Scheme(other.map_or(String::new(), |(scheme, _)| shown_scheme(scheme)))),
    }
}

fn unix_address(path: &str) -> Result<Address, ConfigFault> {
    const MOST: usize = 107; // what the kernel takes
    let path = decode(path).ok_or(ConfigFault::Escape("path"))?;
    let good = path.starts_with(b"/") && path.len() <= MOST && !path.contains(&0);
    if good { Ok(Address::Unix(OsString::from_vec(path).into())) } else { Err(ConfigFault::SocketPath) }
}

/// `[USER:PASSWORD@]HOST[:PORT][/DB]`. What it says of user, password and database goes to `settings`.
fn tcp_address(server: &str, tls: bool, settings: &mut Settings) -> Result<Address, ConfigFault> {
    if tls && !cfg!(feature = "tls") {
        return Err(ConfigFault::NoTls);
    }
    // The crate's texts may quote what they could not read.
    let info = format!("redis://{server}").into_connection_info().map_err(|_| ConfigFault::Server)?;
    let said = info.redis_settings();
    let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(ConfigFault::Server) };
    if host.is_empty() || host.contains(['\0', '%']) || server.contains('#') {
        return Err(ConfigFault::Server);
    }
    if let Some(user) = said.username() {
        settings.user = Some(user.to_owned());
    }
    if let Some(password) = said.password() {
        settings.password = Some(Secret::Text(password.to_owned()));
    }
    if server.rsplit('@').next().and_then(|place| place.split_once('/')).is_some_and(|(_, db)| !db.is_empty()) {
        settings.db = Some(u32::try_from(said.db()).map_err(|_| ConfigFault::Server)?);
    }
    Ok(Address::Tcp { host: host.clone(), port: *port, tls })
}

/// What may be said of an unknown scheme: it may be a mistyped URL with a password in it.
fn shown_scheme(scheme: &str) -> String {
    let plain = scheme.len() <= 10 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if plain { format!("{scheme}:") } else { String::new() }
}

fn is_table_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(good)
}

/// Replaces `%XX` by the byte; None where two hex digits are missing.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' { hex_digit(bytes.next()?)? << 4 | hex_digit(bytes.next()?)? } else { byte });
    }
    Some(decoded)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<(Target, Settings), String> {
        let mut settings = Settings::default();
        let target = parse_url(url, &mut settings).map_err(|fault| fault.to_string())?;
        Ok((target, settings))
    }

    #[test]
    fn urls_carry_options() {
        let (target, settings) = parsed("shm:pages?ttl=0.5&namespace=a%00b%2f&key=raw&size=64k&dir=/dev/shm").unwrap();
        assert!(matches!(target, Target::Shm(name) if name == "pages"));
        assert_eq!((settings.ttl_ms, settings.namespace), (500, b"a\0b/".to_vec()));
        assert!(settings.raw_keys);
        assert_eq!(settings.size, 65536);
        assert_eq!(settings.dir, Some(PathBuf::from("/dev/shm")));
        assert!(matches!(parsed("shm:").unwrap().0, Target::Shm(name) if name == "default"));
        assert!(matches!(parsed("off:?&ttl=1&").unwrap().0, Target::Off));
    }

    #[test]
    fn urls_name_servers() {
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port, tls: false };
        let server = |url: &str| match parsed(url).unwrap() {
            (Target::Redis(address), settings) => (address, settings),
            (other, _) => panic!("{url}: {other:?}"),
        };
        assert_eq!(server("redis://h").0, Some(tcp("h", 6379)));
        assert_eq!(server("redis://127.0.0.1:7000/").0, Some(tcp("127.0.0.1", 7000)));
        assert_eq!(server("redis://[::1]:7000/2").0, Some(tcp("::1", 7000)));
        match parsed("rediss://h") {
            Ok((Target::Redis(Some(address)), _)) if cfg!(feature = "tls") => {
                assert_eq!(address, Address::Tcp { host: "h".to_owned(), port: 6379, tls: true });
                assert!(parsed("rediss://h\u{e9}").is_err(), "no certificate has such a name");
            }
            other => assert!(other.unwrap_err().contains("needs a library that was built with TLS")),
        }
        assert_eq!(server("unix:///run/a%20b?db=3").0, Some(Address::Unix("/run/a b".into())));
        assert_eq!(server("redis:?ttl=1").0, None);
        let (_, settings) = server("redis://us%40er:p%2Fw%20%3A@h/7?password_file=/x");
        assert_eq!((settings.user.as_deref(), settings.db), (Some("us@er"), Some(7)));
        assert!(matches!(settings.password, Some(Secret::File(path)) if path.as_os_str() == "/x"));
        let (_, settings) = server("redis://:p%2Fw%20%3A@h");
        assert!(matches!(settings.password, Some(Secret::Text(text)) if text == "p/w :"));
        assert_eq!((settings.user, settings.db), (None, None));
    }

    #[test]
    fn defaults_are_those_of_the_table() {
        let settings = Settings::default();
        assert_eq!(settings.namespace, b"buflock:");
        assert_eq!((settings.ttl_ms, settings.timeout_ms), (60_000, 5_000));
        assert_eq!((settings.step_ms, settings.max_step_ms), (1, 100));
        assert_eq!((settings.breaker, settings.fencing, settings.nudge), (Some(3), false, true));
        assert_eq!((settings.size, settings.mode, settings.dir), (1 << 20, None, None));
    }

    #[test]
    fn bad_urls_say_what_is_wrong() {
        let cases = [
            ("", "the URL begins with \"\""),
            ("pages", "the URL begins with \"\""),
            ("memcached://h", "the URL begins with \"memcached:\""),
            ("shm:../x", "bad table name \"../x\""),
            ("shm:.hidden", "bad table name \".hidden\""),
            ("shm://x", "bad table name \"//x\""),
            ("shm:a b", "bad table name"),
            ("off:x", "off: takes no name"),
            ("shm:x?ttl", "has no value"),
            ("shm:x?password=a&geheim", "as %26"),
            ("shm:x?password=%ffgeheim", "option password"),
            ("shm:x?tll=5", "did you mean \"ttl\"?"),
            ("shm:x?password=a&geheim=1", "unknown option \"...\""),
            ("redis://u:1?geheim=x@h/0", "unknown option \"...\""),
            ("shm:x?passwrd=geheim", "did you mean \"password\"?"),
            ("shm:x?ttl=%zz", "has a % without"),
            ("shm:x?ttl=1&size=64k&ttl=2", "the URL says option ttl twice"),
            ("shm:x?ttl=%5", "has a % without"),
            ("redis://u:geheim@", "the URL's server cannot be read"),
            ("redis://u:geh/eim@h", "the URL's server cannot be read"),
            ("redis://u:geheim@h:x", "the URL's server cannot be read"),
            ("redis://u:geheim@h/one", "the URL's server cannot be read"),
            ("redis://u:geheim@h/-1", "the URL's server cannot be read"),
            ("redis://u:geheim@h#x", "the URL's server cannot be read"),
            ("redis:u:geheim@h", "the URL's server cannot be read"),
            ("redis://0.0.0.0", "the URL's server cannot be read"),
            ("redis://u:geheim@h?db=x", "option db is"),
            ("unix://here", "unix:// needs a path"),
            ("unix:///a%00b", "unix:// needs a path"),
            ("unix:///a%zz", "the URL's path has a %"),
            ("redis//u:geheim@h", "the URL begins with \"\""),
            ("geheim@host:6379", "the URL begins with \"\""),
        ];
        for (url, want) in cases {
            let text = parsed(url).unwrap_err();
            assert!(text.contains(want), "{url}: {text}");
            assert!(!text.contains("geheim"), "{url}: {text}");
        }
        let name = "x".repeat(65);
        assert!(parsed(&format!("shm:{name}")).unwrap_err().contains("bad table name"));
        assert!(parsed(&format!("shm:{}", &name[1..])).is_ok());
    }

    #[test]
    fn bad_values_change_nothing_and_say_what_is_right() {
        let bad = [
            ("ttl", &["0", "-1", "nan", "inf", "10s", "", "2592000.1", "\u{661}"][..]),
            ("timeout", &["-1", "nan", "1h"]),
            ("step", &["0"]),
            ("ratio", &["0.5", "nan", "inf", "-2", "x", "1001"]),
            ("breaker", &["0", "-1", "on", "1.5"]),
            ("fencing", &["1", "yes", "ON", ""]),
            ("label", &["", "a b", "\u{e9}", "a\n"]),
            ("key", &["", "md5"]),
            ("dir", &["", "here", "../x"]),
            ("size", &["", "0", "15k", "65G", "1T", "-1", "+1M", "M", "99999999999999999999", "\u{661}M"]),
            ("mode", &["0666", "666", "rw", "", "0o600"]),
            ("db", &["-1", "x"]),
            ("namespace", &[""]),
        ];
        for (option, values) in bad {
            let want = OPTIONS.iter().find(|row| row.name == option).unwrap().want;
            for value in values {
                let text = Settings::default().set(option, value.as_bytes()).unwrap_err().to_string();
                assert_eq!(text, format!("option {option} is \"{value}\": it must be {want}"));
            }
        }
        assert!(Settings::default().set("ttl", b"\xff").is_err());
    }

    #[test]
    fn no_text_makes_it_panic() {
        arbtest::arbtest(|u| {
            let mut settings = Settings::default();
            let url: String = u.arbitrary()?;
            let _ = parse_url(&url, &mut settings);
            let query = format!("shm:x?{url}");
            let _ = parse_url(&query, &mut settings);
            let option = u.choose(&OPTIONS)?.name;
            let value: Vec<u8> = u.arbitrary()?;
            if settings.set(option, &value).is_ok() && option != "namespace" {
                assert!(std::str::from_utf8(&value).is_ok());
            }
            assert!((1..=MAX_MS).contains(&settings.ttl_ms) && SIZES.contains(&settings.size));
            assert!(!settings.namespace.is_empty());
            Ok(())
        });
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        arbtest::arbtest(|u| {
            let namespace: Vec<u8> = u.arbitrary()?;
            if namespace.is_empty() {
                return Ok(());
            }
            let encoded: String = namespace.iter().map(|byte| format!("%{byte:02x}")).collect();
            let mut settings = Settings::default();
            parse_url(&format!("shm:x?namespace={encoded}"), &mut settings).unwrap();
            assert_eq!(settings.namespace, namespace);
            Ok(())
        });
    }

    #[test]
    fn steps_grow_up_to_the_longest() {
        let pauses =
            |settings: Settings| [0, 1, 2, 9, u32::MAX].map(|count| settings.steps().pause_ns(count) / NS_PER_MS);
        assert_eq!(pauses(Settings::default()), [1, 2, 4, 100, 100]);
        let mut settings = Settings::default();
        settings.set("ratio", b"1").unwrap();
        settings.set("step", b"7").unwrap();
        settings.set("max_step", b"0.5").unwrap();
        assert_eq!(pauses(settings), [500; 5]);
    }

    #[test]
    fn a_password_is_never_shown() {
        let mut settings = Settings::default();
        settings.set("password", b"geheim").unwrap();
        assert!(!format!("{settings:?}").contains("geheim"));
    }
}
