//! What README.md and docs/ say, against the code: tables, texts, examples and the demo.

use buflock::client::Client;
use buflock::config::{OPTIONS, Settings};
use buflock::error::{ArgumentFault, BellFault, ConfigFault, Error, SegmentFault, ServerFault};
use buflock::ffi::words::buflock_status_name;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const README: &str = include_str!("../README.md");
const OPERATIONS: &str = include_str!("../docs/operations.md");
const REDIS: &str = include_str!("../docs/redis.md");
const PROTOCOL: &str = include_str!("../docs/protocol.md");

/// The text from the heading `heading` to the next one of its rank or higher.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let rank = heading.bytes().take_while(|byte| *byte == b'#').count();
    let start = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading}"));
    let body = &page[start + heading.len() + 2..];
    let is_next = |line: &str| line.starts_with('#') && line.bytes().take_while(|byte| *byte == b'#').count() <= rank;
    let mut fenced = false;
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        fenced ^= line.starts_with("```");
        if !fenced && is_next(line) {
            break;
        }
        end += line.len();
    }
    &body[..end]
}

/// The cells of the rows of all tables in `text`, without headings, and without the backticks around a cell.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<_> = text.lines().collect();
    let is_row = |place: &usize| {
        let next = lines.get(place + 1).unwrap_or(&"");
        lines[*place].starts_with("| ") && !next.starts_with("|---")
    };
    let cells = (0..lines.len()).filter(is_row).map(|place| lines[place].trim_matches('|').split(" |"));
    cells.map(|cells| cells.map(|cell| cell.trim().trim_matches('`')).collect()).collect()
}

/// The lines between two lines of ``` with `language` behind the first, for each such block.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|part| part.split("```").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_table_of_options_is_that_of_the_code() {
    let written: Vec<_> = rows(section(README, "## Options")).iter().map(|cells| (cells[0], cells[1])).collect();
    let dash = |default| if str::is_empty(default) { "–" } else { default };
    let known: Vec<_> = OPTIONS.iter().map(|row| (row.name, dash(row.default))).collect();
    assert_eq!(written, known);
}

#[test]
fn the_table_of_statuses_is_that_of_the_code() {
    let statuses = rows(section(README, "## Statuses"));
    let written: BTreeSet<_> = statuses.iter().map(|cells| (cells[0].to_owned(), cells[1])).collect();
    // SAFETY: names are C strings that stay.
    let name = |status| unsafe { CStr::from_ptr(buflock_status_name(status)) }.to_str().unwrap();
    let known = (-1000..1000).map(|status| (status.to_string(), name(status)));
    assert_eq!(written, known.filter(|(_, name)| *name != "unknown status").collect());
}

#[test]
fn the_table_of_statistics_is_that_of_the_code() {
    let dir = Dir::new();
    let mut known = BTreeSet::new();
    for url in [dir.url("stats"), "off:".to_owned(), "redis:".to_owned()] {
        let json = Client::new(&url, Settings::default()).unwrap().stats().unwrap();
        let parts: Vec<_> = json.split('"').collect();
        known.extend(parts.windows(2).filter(|pair| pair[1].starts_with(':')).map(|pair| pair[0].to_owned()));
    }
    let written: BTreeSet<_> = rows(section(OPERATIONS, "## Statistics"))
        .iter()
        .flat_map(|cells| cells[0].split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect();
    assert_eq!(written, known);
}

#[test]
fn the_layout_is_that_of_the_code() {
    let cells = rows(section(PROTOCOL, "## Layout"));
    let written: String = cells.iter().map(|cells| format!("{} {}\n", cells[0], cells[1])).collect();
    assert_eq!(written, buflock::shm::segment::layout());
}

/// One error of each kind, with what differs in capitals and every number 4711.
fn errors() -> Vec<Error> {
    use {ArgumentFault as A, BellFault as B, ConfigFault as C, SegmentFault as S};
    let (path, name) = (PathBuf::from("PATH"), || "NAME".to_owned());
    let (uid, gid, euid, mode) = (4711, 4711, 4711, 0o4711);
    let mut errors = vec![Error::Full { slots: 4711 }, Error::NoMemory, Error::NoRandom];
    errors.extend([A::Null("NAME"), A::NotUtf8("NAME"), A::ZeroTtl, A::LongTtl(4711)].map(Error::from));
    errors.push(A::StructSize { name: "NAME", size: 4711, ours: 4711 }.into());
    errors.push(A::Room { name: "NAME", room: 4711, need: 4711 }.into());
    errors.extend(
        [
            C::Scheme("SCHEME:".to_owned()),
            C::Server,
            C::SocketPath,
            C::NoTls,
            C::PasswordFile { path: path.clone(), why: "REASON".to_owned() },
            C::CaFile { path: path.clone(), why: "REASON".to_owned() },
            C::NoRoots("REASON".to_owned()),
            C::Name(name()),
            C::OffName,
            C::Unknown { option: name(), nearest: "OTHER" },
            C::Value { option: "NAME", value: Some("VALUE".to_owned()), want: "WANT" },
            C::Value { option: "NAME", value: None, want: "WANT" },
            C::Twice("NAME".to_owned()),
            C::Parameter,
            C::Escape("PLACE"),
        ]
        .map(Error::from),
    );
    errors.push(A::SocketPath { length: 4711, most: 4711 }.into());
    errors.push(A::ReplyKind(4711).into());
    errors.push(Error::NoServer);
    errors.push(Error::Server { server: "URL".into(), fault: ServerFault::Refused, why: "REASON".into() });
    errors.extend([A::OtherProcess { maker: 4711 }, A::NotDone, A::NotAsked("WHAT")].map(Error::from));
    errors.extend([B::NotShm, B::OtherForm, B::Socket, B::Closed].map(Error::from));
    errors.push(B::System { doing: "DOING", errno: 4711 }.into());
    let segment = [
        S::System { doing: "DOING", errno: 4711 },
        S::Denied { doing: "DOING", euid, uid, gid, mode },
        S::Kind { is: "KIND", must_be: "KIND" },
        S::Owner { uid, euid },
        S::WorldWritable { mode },
        S::NotInMemory,
        S::Short { size: 4711, need: 4711 },
        S::Foreign,
        S::Layout { found: 4711, ours: 4711 },
        S::ByteOrder,
        S::Damaged("WHAT"),
        S::Deleted { left_ms: 4711 },
        S::TimeNamespace,
    ];
    errors.extend(segment.map(|fault| Error::Segment { path: path.clone(), fault }));
    errors
}

#[test]
fn every_text_of_an_error_has_its_cure() {
    let reason = std::io::Error::from_raw_os_error(4711).to_string();
    let written: BTreeSet<_> = rows(section(OPERATIONS, "## Errors")).iter().map(|cells| cells[0].to_owned()).collect();
    for error in errors() {
        let text = error.to_string().replace(&reason, "REASON").replace("4711", "N");
        let text = text.strip_prefix("PATH: ").unwrap_or(&text);
        assert!(written.contains(text), "no row for `{text}` in docs/operations.md");
    }
    // And these are all there are.
    let code = std::fs::read_to_string(source("src/error.rs")).unwrap();
    let display = &code[code.find("impl fmt::Display for Error").unwrap()..];
    let shown = format!("{:?}", errors());
    for variant in display.split("Self::").skip(1) {
        let end = variant.find(|char: char| !char.is_alphanumeric()).unwrap();
        assert!(shown.contains(&variant[..end]), "a new kind of error, {}: add it here", &variant[..end]);
    }
}

#[test]
fn what_may_fail_is_listed() {
    let listed = section(OPERATIONS, "### BUFLOCK_SEGMENT").replace('\n', " ");
    let mut found = 0;
    for file in ["place.rs", "segment.rs"] {
        let code = std::fs::read_to_string(source("src/shm").join(file)).unwrap();
        for begin in ["doing: \"", "denied(\"", "Damaged(\"", "then_some(\""] {
            for text in code.split(begin).skip(1).map(|rest| rest.split('"').next().unwrap_or_default()) {
                assert!(listed.contains(&format!("`{text}`")), "{file}: no word of `{text}` in docs/operations.md");
                found += 1;
            }
        }
    }
    assert!(found > 20, "only {found} texts found: has the code changed its form?");
}

#[test]
fn every_planted_bug_is_explained() {
    let code = std::fs::read_to_string(source("src/hooks.rs")).unwrap();
    let list = &code[code.find("pub enum Mutant {").unwrap()..];
    let names = list[..list.find('}').unwrap()].lines().skip(1).map(|line| line.trim().trim_end_matches(','));
    let names: BTreeSet<_> = names.filter(|name| !name.starts_with("//") && !["", "None"].contains(name)).collect();
    let tables = [PROTOCOL, REDIS].map(|page| rows(section(page, "## Tests")));
    let written: BTreeSet<_> = tables.iter().flatten().map(|cells| cells[1]).collect();
    for name in names {
        assert!(written.contains(name), "neither docs/protocol.md nor docs/redis.md says what {name} is");
    }
}

#[test]
fn links_lead_somewhere() {
    let docs = [("docs/operations.md", OPERATIONS), ("docs/protocol.md", PROTOCOL), ("docs/redis.md", REDIS)];
    for (page, text) in [("README.md", README)].into_iter().chain(docs) {
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { source(page) } else { source(page).parent().unwrap().join(file) };
            let text = std::fs::read_to_string(&target).unwrap_or_else(|error| panic!("{page}: {link}: {error}"));
            let found =
                anchor.is_empty() || text.lines().any(|line| line.starts_with('#') && anchor_of(line) == anchor);
            assert!(found, "{page}: {link}: no such heading");
        }
    }
}

fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect()
}

// The README shows what stands between the two marks, less the indentation.
fn the_rust_example(lock_url: &str) -> Result<(), Error> {
    use buflock::answer::Acquire;
    // README: let lock = Client::new("shm:pages", Settings::default())?;
    let lock = Client::new(lock_url, Settings::default())?;
    // README: begin
    match lock.acquire(b"page 42", 30_000, 2_000)? {
        Acquire::Held(held) => {
            println!("page 42 is ours to build");
            lock.release(b"page 42", &held.token.0)?;
        }
        Acquire::Busy(busy) => println!("{} builds it, for {} ms at most", busy.holder, busy.left_ms),
    }
    // README: end
    Ok(())
}

#[test]
fn the_rust_example_runs() {
    let dir = Dir::new();
    the_rust_example(&dir.url("pages")).unwrap();
    let own = include_str!("readme.rs");
    let body = own.split("// README: begin\n").nth(1).unwrap().split("    // README: end").next().unwrap();
    let body: String = body.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect();
    let first = "use buflock::{answer::Acquire, client::Client, config::Settings};\n\n\
                 let lock = Client::new(\"shm:pages\", Settings::default())?;\n";
    assert_eq!(blocks(README, "rust"), [format!("{first}{body}")]);
}

#[test]
fn the_c_examples_compile_and_run() {
    let Some(build) = Build::find() else { return };
    let dir = Dir::new();
    let example = &blocks(section(README, "## In C"), "c")[0];
    assert!(example.contains("\"shm:pages\""));
    let program = build.program("readme", &example.replace("shm:pages", &dir.url("pages")));
    assert_eq!(run(&mut Command::new(program)), (0, "page 42 is ours to build\n".to_owned()));

    let program = build.program("look", &blocks(section(OPERATIONS, "## Who holds it"), "c")[0]);
    let client = Client::new(&dir.url("pages"), Settings::default()).unwrap();
    let look = || run(Command::new(&program).args([&dir.url("pages"), "page 42"]));
    assert!(look().1.starts_with("BUFLOCK_OK  0 ms\n{"), "{}", look().1);
    client.acquire(b"page 42", 30_000, 0).unwrap();
    let (status, text) = look();
    assert_eq!(status, 0);
    assert!(text.starts_with(&format!("BUFLOCK_BUSY pid {} ", std::process::id())), "{text}");
    assert!(text.contains("\"held\":1"), "{text}");
    assert_eq!(run(Command::new(&program).args(["shm:../x", ""])).0, 1);
}

#[test]
fn the_demo_is_as_shown() {
    let Some(build) = Build::find() else { return };
    let program = build.program("stampede", &std::fs::read_to_string(source("examples/c/stampede.c")).unwrap());
    let shape = |text: &str| text.lines().map(shape).collect::<BTreeSet<_>>();
    let (status, text) = run(&mut Command::new(&program));
    assert_eq!(status, 0, "{text}");
    assert_eq!(shape(&text), shape(&blocks(README, "text")[0]), "{text}");

    let (status, text) = run(Command::new(&program).arg("off:"));
    assert_eq!(status, 1, "nothing is locked, so it must fail: {text}");
    assert!(text.contains("FAILED: exactly one was to build"), "{text}");
    for (args, status) in [(&["a", "b"][..], 2), (&["--help"], 0), (&["shm:../x"], 1), (&["redis://h"], 1)] {
        assert_eq!(run(Command::new(&program).args(args)).0, status, "{args:?}");
    }
}

/// A line without its numbers, and without what differs with the machine's speed.
fn shape(line: &str) -> String {
    let line: String = line.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    let words = line.split_whitespace().map(|word| match word.trim_start_matches("..") {
        digits if digits.bytes().all(|byte| byte == b'0') => "0",
        "BUFLOCK_TAKEN;" | "BUFLOCK_EXPIRED;" => "STATUS",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// How a C program is built against this library.
struct Build {
    library: PathBuf,
    out: PathBuf,
}

impl Build {
    /// None: there is no C compiler.
    fn find() -> Option<Self> {
        // Cargo has made the library beside this program, in target/debug/deps.
        let library = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let compiler = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
        if !compiler {
            let _ = writeln!(std::io::stderr(), "skipped: there is no cc (package gcc)"); // past the capture
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "there is no cc");
        }
        assert!(library.join("libbuflock.so").exists(), "no library in {}", library.display());
        compiler.then(|| Self { library, out: PathBuf::from(env!("CARGO_TARGET_TMPDIR")) })
    }

    fn program(&self, name: &str, code: &str) -> PathBuf {
        let (c, program) = (self.out.join(format!("{name}.c")), self.out.join(name));
        std::fs::write(&c, code).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]).arg(&program).arg(&c);
        cc.arg("-I").arg(source("include")).arg("-L").arg(&self.library).arg("-lbuflock");
        cc.arg(format!("-Wl,-rpath,{}", self.library.display()));
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

/// Exit status and standard output; -1 for a death by signal.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8(output.stdout).unwrap())
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A directory for tables, gone with the guard.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        use std::os::unix::fs::DirBuilderExt;
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("/dev/shm/buflock-readme-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        std::fs::DirBuilder::new().mode(0o700).create(&name).unwrap();
        Self(name.into())
    }

    fn url(&self, name: &str) -> String {
        format!("shm:{name}?dir={}", self.0.display())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
