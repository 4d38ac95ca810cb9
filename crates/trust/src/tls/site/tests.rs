use rustls::pki_types::pem::PemObject;
use rustls::server::Acceptor;
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::tls::{CertificateSource, ServerTls, client_config, load_files};

fn key(seed: u8) -> SiteKey {
    SiteKey::from_seed([seed; 32])
}

fn certificate(seed: u8) -> SiteCertificate {
    SiteCertificate::new(&key(seed), SiteId::new(), Timestamp::now()).unwrap()
}

struct Server {
    tls: ServerTls,
    state: tempfile::TempDir,
}

impl Server {
    fn new(site: Option<SiteCertificate>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let source =
            CertificateSource::OwnCa { directory: state.path().into(), names: vec!["localhost".into()] };
        Self { tls: ServerTls::load(source, site, Timestamp::now()).unwrap(), state }
    }

    /// Trusts the server's CA, as ordinary clients do.
    fn ordinary_client(&self) -> ClientConfig {
        client_config(Some(&self.tls.ca_file().unwrap())).unwrap()
    }

    /// Shakes hands in memory. The error is that of the side that first refused.
    fn connect(&self, client: ClientConfig) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name)?;
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut wire.as_slice()).unwrap();
        let accepted = acceptor.accept().map_err(|(error, _)| error)?.expect("a whole first message");
        let config = self.tls.configs().choose(&accepted.client_hello());
        let mut server = accepted.into_connection(config).map_err(|(error, _)| error)?;
        // Beyond the handshake, so that tickets and late alerts arrive as well.
        for _ in 0..4 {
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets()?;
            wire.clear();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok((client, server))
    }
}

fn pinned(own: u8, server: &[u8]) -> ClientConfig {
    let keys = server.iter().map(|seed| key(*seed).public()).collect();
    site_client_config(&certificate(own), keys).unwrap()
}

fn wrong_key() -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

#[test]
fn two_sites_learn_each_others_keys() {
    let server = Server::new(Some(certificate(1)));
    let (client, accepted) = server.connect(pinned(2, &[1])).unwrap();
    assert_eq!(site_peer(&accepted), Some(key(2).public()));
    assert_eq!(site_peer(&client), Some(key(1).public()));
    assert_eq!(accepted.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let suite = accepted.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    // The key that was and the one that will be.
    assert!(server.connect(pinned(2, &[9, 1])).is_ok());
}

#[test]
fn another_key_than_the_pinned_one_is_recognised() {
    let server = Server::new(Some(certificate(1)));
    for keys in [&[3][..], &[3, 4], &[]] {
        let error = server.connect(pinned(2, keys)).unwrap_err();
        assert_eq!(error, wrong_key());
        assert!(is_unexpected_key(&error));
        let wrapped = io::Error::new(io::ErrorKind::InvalidData, io::Error::other(error));
        assert!(is_unexpected_key(&wrapped));
    }
    assert!(!is_unexpected_key(&io::Error::other(rustls::Error::HandshakeNotComplete)));
}

#[test]
fn a_client_that_was_sent_knows_the_site_and_stays_an_ordinary_client() {
    let server = Server::new(Some(certificate(1)));
    let visitor =
        |seeds: &[u8]| visitor_config(seeds.iter().map(|seed| key(*seed).public()).collect()).unwrap();
    let (client, accepted) = server.connect(visitor(&[9, 1])).unwrap();
    assert_eq!(site_peer(&client), Some(key(1).public()));
    assert_eq!(site_peer(&accepted), None);
    let error = server.connect(visitor(&[3])).unwrap_err();
    assert!(is_unexpected_key(&error), "{error}");
}

#[test]
fn the_certificate_for_ordinary_clients_does_not_do_between_sites() {
    let server = Server::new(Some(certificate(1)));
    let pem = std::fs::read(server.state.path().join("server.pem")).unwrap();
    let ordinary = CertificateDer::from_pem_slice(&pem).unwrap();
    assert_eq!(peer_key(Some(&[ordinary])), None);
    // A server that knows nothing of sites does not agree on the protocol.
    assert!(Server::new(None).connect(pinned(2, &[1])).is_err());
}

#[test]
fn ordinary_clients_are_not_asked_for_a_certificate() {
    #[derive(Debug)]
    struct Asked(Arc<std::sync::atomic::AtomicBool>);
    impl rustls::client::ResolvesClientCert for Asked {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            None
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    let server = Server::new(Some(certificate(1)));
    // As ours, as curl without HTTP/2, as a browser, and as something that knows no application protocols.
    for protocols in [&[&b"http/1.1"[..]][..], &[b"h2", b"http/1.1"], &[]] {
        let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut client = server.ordinary_client();
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        client.client_auth_cert_resolver = Arc::new(Asked(asked.clone()));
        let (_, accepted) = server.connect(client).unwrap();
        assert!(!asked.load(std::sync::atomic::Ordering::SeqCst), "{protocols:?}");
        assert_eq!(site_peer(&accepted), None);
    }
    // The resolver above is really used: sites are asked.
    let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut client = pinned(2, &[1]);
    client.client_auth_cert_resolver = Arc::new(Asked(asked.clone()));
    let (_, accepted) = server.connect(client).unwrap();
    assert!(asked.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(site_peer(&accepted), None, "who shows nothing can connect, but is no site");
}

#[test]
fn certificates_of_other_kinds_and_stolen_ones_are_refused() {
    let server = Server::new(Some(certificate(1)));
    let connect = |certified: CertifiedKey| {
        let mut client = pinned(2, &[1]);
        client.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        server.connect(client).map(|_| ()).unwrap_err()
    };
    let (own, other) = (certificate(2).certified(), certificate(3).certified());
    // Site 2's certificate without its key.
    let stolen = CertifiedKey::new(own.cert.clone(), other.key.clone());
    let error = connect(stolen);
    assert!(matches!(error, rustls::Error::InvalidCertificate(CertificateError::BadSignature)), "{error:?}");
    // More than one: whose key would count?
    let chain = own.cert.iter().chain(&other.cert).cloned().collect();
    let error = connect(CertifiedKey::new(chain, own.key.clone()));
    assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::BadEncoding));
    let error = connect(CertifiedKey::new(vec![b"junk".to_vec().into()], own.key.clone()));
    assert_eq!(error, rustls::Error::InvalidCertificate(CertificateError::BadEncoding));
    // An ECDSA key, which the server does not ask for: the client shows nothing, and is no site.
    let ordinary =
        load_files(&server.state.path().join("server.pem"), &server.state.path().join("server.key")).unwrap();
    let mut client = pinned(2, &[1]);
    client.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(ordinary));
    let (_, accepted) = server.connect(client).unwrap();
    assert!(accepted.peer_certificates().is_none());
    assert_eq!(site_peer(&accepted), None);
}

#[test]
fn a_server_without_the_key_of_its_certificate_is_refused() {
    #[derive(Debug)]
    struct Forged(Arc<CertifiedKey>);
    impl ResolvesServerCert for Forged {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
    }
    let (shown, held) = (certificate(1).certified(), certificate(3).certified());
    let forged = Arc::new(CertifiedKey::new(shown.cert.clone(), held.key.clone()));
    let config = site_server_config(Arc::new(Forged(forged))).unwrap();
    let mut server = Server::new(Some(certificate(3)));
    server.tls.configs.site = Some(Arc::new(config));
    let error = server.connect(pinned(2, &[1])).unwrap_err();
    assert!(matches!(error, rustls::Error::InvalidCertificate(CertificateError::BadSignature)), "{error:?}");
}

#[test]
fn tls_1_2_is_not_for_sites() {
    let server = Server::new(Some(certificate(1)));
    let verifier = PinnedKeys {
        pinned: Some(vec![key(1).public()]),
        algorithms: provider().signature_verification_algorithms,
    };
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certificate(2).certified())));
    client.alpn_protocols = vec![SITE_ALPN.to_vec()];
    assert!(server.connect(client).is_err());
}

#[test]
fn sessions_between_sites_are_not_resumed() {
    let server = Server::new(Some(certificate(1)));
    let mut config = pinned(2, &[1]);
    // Even by a dialler that would.
    config.resumption = Resumption::in_memory_sessions(8);
    for _ in 0..3 {
        let (client, _) = server.connect(config.clone()).unwrap();
        assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

#[test]
fn a_changed_key_is_shown_to_whoever_dials_next() {
    let server = Server::new(Some(certificate(1)));
    assert!(server.connect(pinned(2, &[1])).is_ok());
    assert!(server.tls.show_to_sites(&certificate(5)));
    assert_eq!(server.connect(pinned(2, &[1])).unwrap_err(), wrong_key());
    let (client, _) = server.connect(pinned(2, &[5])).unwrap();
    assert_eq!(site_peer(&client), Some(certificate(5).public()));
    assert!(!Server::new(None).tls.show_to_sites(&certificate(5)));
    // Ordinary clients notice nothing.
    assert!(server.connect(server.ordinary_client()).is_ok());
}

#[test]
fn who_pins_nothing_hears_whoever_answers_and_both_know_whom() {
    let server = Server::new(Some(certificate(1)));
    let (client, accepted) = server.connect(unpinned_client_config(&certificate(2)).unwrap()).unwrap();
    assert_eq!(site_peer(&client), Some(certificate(1).public()));
    assert_eq!(site_peer(&accepted), Some(certificate(2).public()));
}
