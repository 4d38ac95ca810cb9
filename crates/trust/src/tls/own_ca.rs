//! A certification authority of the site's own, for laptops, tests and sites that no public one knows.
//!
//! Four files: `ca.key` and `server.key` (made once), `ca.pem` and `server.pem` (renewed). Servers that share the directory may do
//! all of this at once: keys are never written over, and of several certificates for one key each is as good as the other.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percale_core::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use zeroize::Zeroizing;

use super::provider;
use crate::{Error, ErrorKind, private_file};

pub const CA_FILE: &str = "ca.pem";
const CA_KEY_FILE: &str = "ca.key";
const SERVER_FILE: &str = "server.pem";
const SERVER_KEY_FILE: &str = "server.key";

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_DAYS: u32 = 3650;
/// The longest that common clients accept (Apple, 398 days).
const SERVER_DAYS: u32 = 397;
/// Renewed when fewer are left.
const RENEW_DAYS: u32 = 30;
/// Clocks of clients may be behind.
const BACKDATED: Duration = Duration::from_secs(3600);
const MAX_NAMES: usize = 64;
/// Text before the certificate, which readers of PEM pass over.
const NAMES_PREFIX: &str = "# names: ";
const EXPIRES_PREFIX: &str = "# expires: ";

/// Sees to it that the directory holds a CA and a server certificate for these names that lasts for a while. Returns
/// the files of the server's certificate and key.
pub fn ensure(directory: &Path, names: &[String], now: Timestamp) -> Result<(PathBuf, PathBuf), Error> {
    let names = checked(names)?;
    private_file::make_directory(directory)?;
    let ca_key = key_pair(&directory.join(CA_KEY_FILE), "the key of the CA")?;
    let server_key = key_pair(&directory.join(SERVER_KEY_FILE), "the TLS key")?;
    let (ca_path, server_path) = (directory.join(CA_FILE), directory.join(SERVER_FILE));
    let later = now.after(RENEW_DAYS * DAY);
    let line = format!("{NAMES_PREFIX}{}", names.join(", "));

    let mut ca = read_if_there(&ca_path)?;
    let ca_params = ca_params(&ca_key, now);
    if !ca_is_good(&ca, &ca_key, later) {
        let certificate =
            ca_params.self_signed(&ca_key).map_err(|error| crypto("cannot make the site's CA", error))?;
        ca = format!("{EXPIRES_PREFIX}{}\n{}", now.after(CA_DAYS * DAY), certificate.pem()).into_bytes();
        private_file::replace("the CA file", &ca_path, &ca, 0o644)?;
    }
    let is_good = |server: &[u8]| {
        lines(server).any(|text| text == line)
            && has_key(server, &server_key)
            && names.iter().all(|name| would_be_accepted(&ca, server, name, later))
    };
    if !is_good(&read_if_there(&server_path)?) {
        let issuer = Issuer::from_params(&ca_params, &ca_key);
        let certificate = server_params(&names, now)?
            .signed_by(&server_key, &issuer)
            .map_err(|error| crypto("cannot make the server's certificate", error))?;
        let server = format!("{line}\n{}", certificate.pem()).into_bytes();
        if !is_good(&server) {
            return Err(Error::new(ErrorKind::Crypto, "cannot make a certificate that clients would accept"));
        }
        private_file::replace("the server's certificate", &server_path, &server, 0o644)?;
    }
    Ok((server_path, directory.join(SERVER_KEY_FILE)))
}

fn checked(names: &[String]) -> Result<Vec<String>, Error> {
    let refuse = |why: String| Err(Error::new(ErrorKind::InvalidRequest, why));
    if names.is_empty() || names.len() > MAX_NAMES {
        return refuse(format!(
            "cannot make a certificate for {} names, only for 1 to {MAX_NAMES}",
            names.len()
        ));
    }
    let mut checked = names.to_vec();
    checked.sort();
    checked.dedup();
    match checked.iter().find(|name| ServerName::try_from(name.as_str()).is_err()) {
        Some(name) => refuse(format!("cannot make a certificate for {name:?}: not a host name or address")),
        None => Ok(checked),
    }
}

fn key_pair(path: &Path, what: &str) -> Result<KeyPair, Error> {
    let pem = private_file::read_or_create(what, path, || {
        let pair = KeyPair::generate().map_err(|error| crypto("cannot make a key", error))?;
        Ok(Zeroizing::new(pair.serialize_pem().into_bytes()))
    })?;
    std::str::from_utf8(&pem)
        .ok()
        .and_then(|pem| KeyPair::from_pem(pem).ok())
        .ok_or_else(|| Error::new(ErrorKind::Malformed, format!("there is no key in {}", path.display())))
}

fn ca_params(key: &KeyPair, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    // Named after its key, so that the CAs of two sites are not taken for one, and so that the name can be made again.
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &key.subject_public_key_info());
    let short = hex::encode(digest.as_ref().get(..6).unwrap_or_default());
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Percale site CA {short}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_life(&mut params, now, CA_DAYS);
    params
}

fn server_params(names: &[String], now: Timestamp) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Percale server");
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(
                name.as_str().try_into().map_err(|error| crypto("cannot use a name", error))?,
            ),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_life(&mut params, now, SERVER_DAYS);
    Ok(params)
}

fn set_life(params: &mut CertificateParams, now: Timestamp, days: u32) {
    let since_1970 = now.since(Timestamp::EPOCH);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_1970.saturating_sub(BACKDATED);
    params.not_after = epoch + since_1970 + days * DAY;
}

fn read_if_there(path: &Path) -> Result<Vec<u8>, Error> {
    match path.try_exists() {
        Ok(false) => Ok(Vec::new()),
        _ => private_file::read_public("the certificate", path),
    }
}

/// Tells whether the CA file is of this key and lasts. The date is read from the file's own text, since no library here
/// tells a certificate's; whatever is not ours is made anew.
fn ca_is_good(ca: &[u8], key: &KeyPair, at: Timestamp) -> bool {
    let expires = lines(ca).find_map(|text| text.strip_prefix(EXPIRES_PREFIX)?.parse::<Timestamp>().ok());
    expires.is_some_and(|expires| expires > at) && has_key(ca, key)
}

/// Tells whether a client that trusts the CA would accept the certificate under this name at this time.
fn would_be_accepted(ca: &[u8], server: &[u8], name: &str, at: Timestamp) -> bool {
    let verify = || {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca).ok()?).ok()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider()).build().ok()?;
        let certificate = CertificateDer::from_pem_slice(server).ok()?;
        let at = UnixTime::since_unix_epoch(at.since(Timestamp::EPOCH));
        verifier.verify_server_cert(&certificate, &[], &ServerName::try_from(name).ok()?, &[], at).ok()
    };
    verify().is_some()
}

fn has_key(pem: &[u8], key: &KeyPair) -> bool {
    let read = || {
        let der = CertificateDer::from_pem_slice(pem).ok()?;
        Some(
            ParsedCertificate::try_from(&der).ok()?.subject_public_key_info()
                == key.subject_public_key_info().into(),
        )
    };
    read().unwrap_or(false)
}

fn lines(pem: &[u8]) -> impl Iterator<Item = &str> {
    std::str::from_utf8(pem).unwrap_or_default().lines()
}

fn crypto(what: &str, error: rcgen::Error) -> Error {
    Error::new(ErrorKind::Crypto, what).with_source(error)
}
