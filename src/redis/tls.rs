//! TLS over a socket of ours. The socket keeps the time limits; what TLS has to remember stays here, so a receive that a
//! signal has ended goes on where it was.
//!
//! Nothing says goodbye: connections are closed abortively, and a forked child must not speak on its parent's.

use super::server::read_file;
use super::socket::{Received, Socket};
use crate::config::Address;
use crate::error::{ConfigFault, Error};
use crate::policy::ms_passed;
use crate::sys::monotonic;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The largest ca_file, in bytes. All of the world's are a quarter of a megabyte.
const CA_FILE_MAX: u64 = 16 << 20;
/// What is taken from the socket at once. What it decrypts to is less than what a session can hold.
const CHUNK: usize = 4096;

/// Whom this process trusts, and its sessions that may be resumed. Made at the first connection: to read the system's
/// certificates takes longer than a handshake.
#[derive(Default)]
pub struct Trust(OnceLock<Arc<ClientConfig>>);

impl Trust {
    /// The beginning of a session with the server at `address`; None: it speaks no TLS.
    ///
    /// # Errors
    /// There is nobody to trust.
    pub fn begin(&self, address: &Address, ca_file: Option<&Path>) -> Result<Option<Box<Session>>, Error> {
        let Address::Tcp { host, tls: true, .. } = address else { return Ok(None) };
        let config = match self.0.get() {
            Some(config) => config,
            None => {
                let made = config(ca_file)?;
                self.0.get_or_init(|| made)
            }
        };
        // A host that is a number is compared with the numbers in the certificate.
        let name = ServerName::try_from(host.clone()).map_err(|_| ConfigFault::Server)?;
        let mut tls = ClientConnection::new(config.clone(), name).map_err(|_| Error::NoRandom)?;
        tls.set_buffer_limit(None); // all of a command is sent at once
        Ok(Some(Box::new(Session { tls, host: host.clone(), outgoing: Vec::new() })))
    }
}

/// Whether a certificate can name this host.
pub fn can_be_named(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

fn config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, ConfigFault> {
    let roots = match ca_file {
        Some(path) => roots_in(path).map_err(|why| ConfigFault::CaFile { path: path.to_path_buf(), why })?,
        None => roots_of_system().map_err(ConfigFault::NoRoots)?,
    };
    // The provider is named here and never made the process's: the host may have one of its own.
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| unreachable!("ring knows both versions: {error}"))
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn roots_in(path: &Path) -> Result<RootCertStore, String> {
    let text = read_file(path, CA_FILE_MAX, "16 MB")?;
    let mut roots = RootCertStore::empty();
    for (index, certificate) in CertificateDer::pem_slice_iter(&text).enumerate() {
        let bad = |error: &dyn std::fmt::Display| format!("certificate {} in it cannot be read: {error}", index + 1);
        let certificate = certificate.map_err(|error| bad(&error))?;
        roots.add(certificate).map_err(|error| bad(&error))?;
    }
    if roots.is_empty() {
        return Err("there is no certificate in it: it must be PEM, with lines BEGIN CERTIFICATE".to_owned());
    }
    Ok(roots)
}

fn roots_of_system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs); // some systems have one that nobody can read
    match found.errors.first() {
        _ if !roots.is_empty() => Ok(roots),
        Some(error) => Err(error.to_string()),
        None => Err("none were found".to_owned()),
    }
}

/// A session with a server.
pub struct Session {
    tls: ClientConnection,
    host: String,
    /// What is to be sent, encrypted.
    outgoing: Vec<u8>,
}

impl Session {
    /// Shakes hands, until `until` at the latest, whatever signals come.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn shake_hands(&mut self, socket: &Socket, until: u64) -> Result<(), String> {
        let begun = monotonic();
        let mut bytes = [0; CHUNK];
        loop {
            self.flush(socket, until).map_err(|why| format!("TLS handshake: {why}"))?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            match socket.receive_by(&mut bytes, until) {
                Received::Bytes(count) => self.take(socket, &bytes[..count])?,
                Received::Interrupted => {}
                Received::Lost(why) => return Err(format!("TLS handshake: {why}")),
                Received::Elapsed => {
                    let ms = ms_passed(monotonic() - begun);
                    return Err(format!("no TLS handshake within {ms} ms: is it TLS that is spoken there?"));
                }
            }
        }
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn send(&mut self, socket: &Socket, bytes: &[u8], until: u64) -> Result<(), String> {
        self.tls.writer().write_all(bytes).map_err(|error| format!("sending failed: {error}"))?;
        self.flush(socket, until)
    }

    fn flush(&mut self, socket: &Socket, until: u64) -> Result<(), String> {
        self.outgoing.clear();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.outgoing).map_err(|error| format!("sending failed: {error}"))?;
        }
        socket.send(&self.outgoing, until)
    }

    /// Receives some bytes.
    pub fn receive(&mut self, socket: &Socket, into: &mut [u8], until: u64) -> Received {
        let mut bytes = [0; CHUNK];
        loop {
            // What comes may be no more than a part of a record, or a ticket for a later session.
            if let Some(received) = self.read(into) {
                return received;
            }
            let count = match socket.receive(&mut bytes, until) {
                Received::Bytes(count) => count,
                other => return other,
            };
            if let Err(why) = self.take(socket, &bytes[..count]) {
                // What was said before is the reason.
                return self.read(into).unwrap_or(Received::Lost(why));
            }
        }
    }

    /// Whether it is open and nothing has come but what TLS itself has to say.
    pub fn is_quiet(&mut self, socket: &Socket) -> bool {
        const MOST: usize = 16; // else it has a lot to say
        let mut bytes = [0; CHUNK];
        for _ in 0..MOST {
            if !socket.is_ours() || self.read(&mut [0]).is_some() {
                return false;
            }
            match socket.receive_by(&mut bytes, 0) {
                Received::Bytes(count) if self.take(socket, &bytes[..count]).is_ok() => {}
                Received::Interrupted => {}
                Received::Elapsed => return true,
                Received::Bytes(_) | Received::Lost(_) => return false,
            }
        }
        false
    }

    /// What is decrypted already.
    fn read(&mut self, into: &mut [u8]) -> Option<Received> {
        match self.tls.reader().read(into) {
            Ok(0) => Some(Received::Lost("the server closed the connection".to_owned())),
            Ok(count) => Some(Received::Bytes(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Received::Lost(error.to_string())),
        }
    }

    /// Takes what came over the socket.
    fn take(&mut self, socket: &Socket, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let taken = self.tls.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            if let Err(error) = self.tls.process_new_packets() {
                let _ = self.flush(socket, 0); // tells it why, if that can be done without waiting
                return Err(words(&error, &self.host));
            }
            if taken == 0 {
                return Err("the server goes on after its end".to_owned());
            }
        }
        Ok(())
    }
}

/// What is wrong, for somebody who does not know TLS by heart.
fn words(error: &rustls::Error, host: &str) -> String {
    use CertificateError as C;
    match error {
        rustls::Error::InvalidCertificate(fault) => match fault {
            C::Expired | C::ExpiredContext { .. } => "certificate expired".to_owned(),
            C::NotValidYet | C::NotValidYetContext { .. } => {
                "certificate not valid yet: is this machine's time of day right?".to_owned()
            }
            C::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
                format!("certificate not valid for name {host}, but for {}", names(presented))
            }
            C::NotValidForName | C::NotValidForNameContext { .. } => format!("certificate not valid for name {host}"),
            C::UnknownIssuer => "unknown issuer of the certificate: see ca_file".to_owned(),
            C::InvalidPurpose | C::InvalidPurposeContext { .. } => "certificate not made for a server".to_owned(),
            C::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "certificate of an issuer (CA:TRUE), not of a server".to_owned()
            }
            other => format!("certificate not valid: {other}"),
        },
        rustls::Error::InvalidMessage(_) => "what came is no TLS".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a certificate of the client, which there is none of: tls-auth-clients no".to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("the server refuses TLS with this client: {alert:?}"),
        rustls::Error::PeerIncompatible(_) => format!("no TLS that both sides know: {error}"),
        other => format!("TLS: {other}"),
    }
}

/// The first of a certificate's names, without what says of which kind they are.
fn names(presented: &[String]) -> String {
    const MOST: usize = 3;
    let plain = |name: &String| match name.split_once('(') {
        Some((_, rest)) => rest.trim_end_matches(')').trim_matches('"').to_owned(),
        None => name.clone(),
    };
    let more = if presented.len() > MOST { ", ..." } else { "" };
    presented.iter().take(MOST).map(plain).collect::<Vec<_>>().join(", ") + more
}
