//! TLS: one provider for the process, the server's side from files or made by the site, and the clients' side.
//!
//! TLS 1.3, and 1.2 for ordinary clients that have nothing newer. AES-128-GCM comes first: it is the fastest on every
//! machine that has AES instructions, and bulk bytes are what the time goes into.
//!
//! Other sites use the same port. What they offer in the first message decides which configuration a connection gets
//! ([`TlsConfigs::choose`]): only they are asked for a certificate, since browsers that are asked bother their users.

mod own_ca;
mod roots;
mod site;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use percale_core::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use roots::{FileThenSystem, system_roots};
pub use site::{
    SITE_ALPN, SiteCertificate, is_unexpected_key, peer_key, site_client_config, site_peer,
    unpinned_client_config, visitor_config,
};

use crate::{Error, ErrorKind, private_file};

/// The only application protocol of ordinary clients: bulk bytes gain nothing from HTTP/2's flow control, and lose a third of the rate.
const ALPN: &[u8] = b"http/1.1";

/// Where the server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateSource {
    /// From files that somebody else renews.
    Files {
        /// The server's certificate and those between it and its CA, in PEM.
        certificate: PathBuf,
        /// Its key in PEM, mode 0600.
        key: PathBuf,
    },
    /// Signed by the site's own CA; both are made and renewed here.
    OwnCa {
        /// Directory for `ca.pem`, `ca.key`, `server.pem` and `server.key`.
        directory: PathBuf,
        /// Names and addresses under which clients reach the server.
        names: Vec<String>,
    },
}

/// The server's side of TLS.
pub struct ServerTls {
    source: CertificateSource,
    current: Arc<Current>,
    site: Option<Arc<Current>>,
    configs: TlsConfigs,
}

/// The configurations of a server, for ordinary clients and for other sites. They follow [`ServerTls::refresh`] and
/// [`ServerTls::show_to_sites`].
#[derive(Clone)]
pub struct TlsConfigs {
    ordinary: Arc<ServerConfig>,
    site: Option<Arc<ServerConfig>>,
}

impl TlsConfigs {
    /// Returns the configuration for a connection that begins with this message: that for sites if the client offers
    /// [`SITE_ALPN`] and the server has a site certificate, else that for ordinary clients. To be used with
    /// `rustls::server::Acceptor` or tokio-rustls' `LazyConfigAcceptor`.
    pub fn choose(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let is_site = hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == SITE_ALPN));
        match &self.site {
            Some(site) if is_site => site.clone(),
            _ => self.ordinary.clone(),
        }
    }

    /// Returns the configuration for ordinary clients.
    pub fn ordinary(&self) -> Arc<ServerConfig> {
        self.ordinary.clone()
    }
}

impl fmt::Debug for TlsConfigs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfigs").field("serves_sites", &self.site.is_some()).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Loads the certificate, or makes it first where the site is its own CA. With a site certificate, other sites are
    /// served as well.
    ///
    /// # Errors
    /// [`Error`]: a file cannot be read or written, holds no certificate or key, the two do not belong together, the key
    /// may be read by others, or a name is no host name or address.
    pub fn load(
        source: CertificateSource,
        site: Option<SiteCertificate>,
        now: Timestamp,
    ) -> Result<Self, Error> {
        let current = Arc::new(Current::new(Arc::new(load(&source, now)?)));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Crypto, "cannot set up TLS").with_source(error))?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Most clients put AES-256 first, which costs a third more and protects nothing that AES-128 does not.
        config.ignore_client_order = true;
        let site = site.map(|site| Arc::new(Current::new(site.certified())));
        let for_sites = match &site {
            Some(current) => Some(Arc::new(site::site_server_config(current.clone())?)),
            None => None,
        };
        let configs = TlsConfigs { ordinary: Arc::new(config), site: for_sites };
        Ok(Self { source, current, site, configs })
    }

    /// Returns the configurations for new connections of ordinary clients and of other sites.
    pub fn configs(&self) -> TlsConfigs {
        self.configs.clone()
    }

    /// Shows another site certificate to sites that dial from now on, after the site's key was changed. Returns whether
    /// sites are served at all.
    pub fn show_to_sites(&self, site: &SiteCertificate) -> bool {
        if let Some(current) = &self.site {
            current.set(site.certified());
        }
        self.site.is_some()
    }

    /// Reads the files again, or renews what the site makes itself and is about to expire. To be called daily. If it
    /// fails, the certificate that is in use stays.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn refresh(&self, now: Timestamp) -> Result<(), Error> {
        let fresh = Arc::new(load(&self.source, now)?);
        self.current.set(fresh);
        Ok(())
    }

    /// Returns the file with the site's own CA, which clients need to be told of.
    pub fn ca_file(&self) -> Option<PathBuf> {
        match &self.source {
            CertificateSource::OwnCa { directory, .. } => Some(directory.join(own_ca::CA_FILE)),
            CertificateSource::Files { .. } => None,
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The certificate in use.
struct Current(RwLock<Arc<CertifiedKey>>);

impl Current {
    fn new(certified: Arc<CertifiedKey>) -> Self {
        Self(RwLock::new(certified))
    }

    fn set(&self, fresh: Arc<CertifiedKey>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

/// Makes aws-lc-rs the process's provider of cryptography for TLS, with AES-128-GCM first. May be called again.
pub fn install_crypto_provider() {
    // Refused only if there is one already, and then every one that is linked is this one.
    let _ = CryptoProvider::clone(&provider()).install_default();
}

/// Returns the clients' side of TLS: trusts what the system trusts, and the CA certificates (PEM) in `ca_file`.
///
/// # Errors
/// [`ErrorKind::Malformed`]: the file holds no certificate, or one that is broken. [`ErrorKind::Io`]: it cannot be read, or
/// none is given and the system has no trusted certificates (on Debian they are in the package `ca-certificates`).
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Crypto, "cannot set up TLS").with_source(error))?;
    let builder = match ca_file {
        Some(path) => {
            let broken = || format!("a certificate is broken in {}", path.display());
            let mut file = RootCertStore::empty();
            for certificate in read_certificates(path)? {
                file.add(certificate)
                    .map_err(|error| Error::new(ErrorKind::Malformed, broken()).with_source(error))?;
            }
            let file = WebPkiServerVerifier::builder_with_provider(file.into(), provider()).build();
            let file = file.map_err(|error| Error::new(ErrorKind::Malformed, broken()).with_source(error))?;
            let verifier = FileThenSystem::new(file, provider());
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
        None => {
            let (roots, errors) = system_roots();
            if roots.is_empty() {
                let error = Error::new(
                    ErrorKind::Io,
                    "cannot find the system's trusted certificates; install the package ca-certificates, or name a CA file",
                );
                return Err(match errors.into_iter().next() {
                    Some(source) => error.with_source(source),
                    None => error,
                });
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            let cipher_suites = vec![
                cipher_suite::TLS13_AES_128_GCM_SHA256,
                cipher_suite::TLS13_AES_256_GCM_SHA384,
                cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
                cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ];
            Arc::new(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
        })
        .clone()
}

fn load(source: &CertificateSource, now: Timestamp) -> Result<CertifiedKey, Error> {
    match source {
        CertificateSource::Files { certificate, key } => load_files(certificate, key),
        CertificateSource::OwnCa { directory, names } => {
            let (certificate, key) = own_ca::ensure(directory, names, now)?;
            load_files(&certificate, &key)
        }
    }
}

fn load_files(certificate: &Path, key: &Path) -> Result<CertifiedKey, Error> {
    let malformed =
        |what: &str, path: &Path| Error::new(ErrorKind::Malformed, format!("{what} in {}", path.display()));
    let chain = read_certificates(certificate)?;
    let pem = private_file::read_private("the TLS key", key)?;
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| malformed("there is no private key", key))?;
    CertifiedKey::from_der(chain, der, &provider()).map_err(|error| {
        malformed("cannot use the certificate", certificate)
            .with_source(format!("with the key in {}: {error}", key.display()))
    })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = private_file::read_public("the certificate", path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(Error::new(ErrorKind::Malformed, format!("there is no certificate in {}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConnection, ProtocolVersion, ServerConnection};

    use super::*;

    const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

    fn own(directory: &Path, names: &[&str]) -> CertificateSource {
        CertificateSource::OwnCa {
            directory: directory.join("tls"),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Shakes hands in memory; returns the client's side.
    fn connect(
        server: &ServerTls,
        client: ClientConfig,
        name: &str,
    ) -> Result<ClientConnection, rustls::Error> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        let mut server = ServerConnection::new(server.configs().ordinary())?;
        let mut wire = Vec::new();
        while client.is_handshaking() || server.is_handshaking() {
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            wire.clear();
            server.process_new_packets()?;
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            wire.clear();
            client.process_new_packets()?;
        }
        Ok(client)
    }

    fn trusting(server: &ServerTls) -> ClientConfig {
        client_config(Some(&server.ca_file().unwrap())).unwrap()
    }

    #[test]
    fn a_client_with_the_ca_file_connects_and_others_do_not() {
        install_crypto_provider();
        install_crypto_provider();
        let state = tempfile::tempdir().unwrap();
        let server =
            ServerTls::load(own(state.path(), &["localhost", "127.0.0.1"]), None, Timestamp::now()).unwrap();
        for name in ["localhost", "127.0.0.1"] {
            let connection = connect(&server, trusting(&server), name).unwrap();
            assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_3));
            let suite = connection.negotiated_cipher_suite().unwrap().suite();
            assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
            assert_eq!(connection.alpn_protocol(), Some(ALPN));
        }
        assert!(connect(&server, trusting(&server), "other.example.org").is_err());
        let elsewhere = tempfile::tempdir().unwrap();
        let other = ServerTls::load(own(elsewhere.path(), &["localhost"]), None, Timestamp::now()).unwrap();
        assert!(connect(&server, trusting(&other), "localhost").is_err());
    }

    #[test]
    fn the_servers_choice_of_cipher_and_tls_1_2_are_served() {
        let state = tempfile::tempdir().unwrap();
        let server = ServerTls::load(own(state.path(), &["localhost"]), None, Timestamp::now()).unwrap();
        let mut provider = CryptoProvider::clone(&provider());
        provider.cipher_suites.reverse();
        let mut roots = RootCertStore::empty();
        roots.add(read_certificates(&server.ca_file().unwrap()).unwrap().remove(0)).unwrap();
        for (version, expected) in [
            (&rustls::version::TLS13, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256),
            (&rustls::version::TLS12, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ] {
            let client = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            let connection = connect(&server, client, "localhost").unwrap();
            assert_eq!(connection.negotiated_cipher_suite().unwrap().suite(), expected);
        }
    }

    #[test]
    fn certificates_are_kept_and_renewed_in_time_under_the_same_ca() {
        let state = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let certificate = || std::fs::read(state.path().join("tls/server.pem")).unwrap();
        let load = |names: &[&str], now| ServerTls::load(own(state.path(), names), None, now).unwrap();
        let server = load(&["localhost"], now);
        let (ca, first) = (std::fs::read(server.ca_file().unwrap()).unwrap(), certificate());
        load(&["localhost"], now.after(DAY));
        assert_eq!(certificate(), first);
        load(&["localhost", "alps.example.org"], now);
        let second = certificate();
        assert_ne!(second, first, "a name was added");
        load(&["localhost"], now);
        let third = certificate();
        assert_ne!(third, second, "a name was taken away");
        server.refresh(now.after(340 * DAY)).unwrap();
        assert_eq!(certificate(), third);
        server.refresh(now.after(380 * DAY)).unwrap();
        assert_ne!(certificate(), third, "less than 30 days were left");
        assert_eq!(std::fs::read(server.ca_file().unwrap()).unwrap(), ca);
        // An old CA is renewed with the same key, so that whoever has the old file still trusts the new certificates.
        server.refresh(now.after(3640 * DAY)).unwrap();
        assert_ne!(std::fs::read(server.ca_file().unwrap()).unwrap(), ca);
        for file in ["ca.key", "server.key"] {
            let mode = state.path().join("tls").join(file).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn bad_files_and_names_are_named() {
        let state = tempfile::tempdir().unwrap();
        for names in [&["bad name"][..], &[], &["*.example.org"], &["a\nb"]] {
            let error = ServerTls::load(own(state.path(), names), None, Timestamp::now()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{names:?}: {error}");
        }
        ServerTls::load(own(state.path(), &["localhost"]), None, Timestamp::now()).unwrap();
        let tls = state.path().join("tls");
        let from_files = |certificate: &str, key: &str| {
            let source = CertificateSource::Files { certificate: tls.join(certificate), key: tls.join(key) };
            ServerTls::load(source, None, Timestamp::now())
        };
        from_files("server.pem", "server.key").unwrap();
        let kind = |certificate, key| from_files(certificate, key).unwrap_err().kind();
        assert_eq!(kind("server.pem", "ca.key"), ErrorKind::Malformed, "the key of another certificate");
        assert_eq!(kind("ca.key", "server.key"), ErrorKind::Malformed, "no certificate in it");
        assert_eq!(kind("missing.pem", "server.key"), ErrorKind::Io);
        std::fs::set_permissions(tls.join("server.key"), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(kind("server.pem", "server.key"), ErrorKind::Exposed);
        assert_eq!(client_config(Some(&tls.join("missing.pem"))).unwrap_err().kind(), ErrorKind::Io);
        for pem in [&b""[..], b"junk", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(tls.join("bad.pem"), pem).unwrap();
            assert_eq!(client_config(Some(&tls.join("bad.pem"))).unwrap_err().kind(), ErrorKind::Malformed);
        }
    }
}
