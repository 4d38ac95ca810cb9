//! Whom a client trusts: a file of certificates, what the system trusts, or both.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Trusts the certificates of a file, and what the system trusts. The system's are some hundred files, which take 10 ms of a
/// command: they are read when a certificate is met that the file's do not vouch for.
#[derive(Debug)]
pub(super) struct FileThenSystem {
    file: Arc<WebPkiServerVerifier>,
    system: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
    provider: Arc<CryptoProvider>,
}

impl FileThenSystem {
    pub fn new(file: Arc<WebPkiServerVerifier>, provider: Arc<CryptoProvider>) -> Self {
        Self { file, system: OnceLock::new(), provider }
    }

    fn system(&self) -> Option<&WebPkiServerVerifier> {
        let read = || {
            let (roots, _) = system_roots();
            WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone()).build().ok()
        };
        self.system.get_or_init(read).as_deref()
    }
}

/// Reads what the system trusts, and says why something of it could not be read.
pub(super) fn system_roots() -> (RootCertStore, Vec<rustls_native_certs::Error>) {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    // A broken one among the system's is no reason not to use the others.
    roots.add_parsable_certificates(native.certs);
    (roots, native.errors)
}

impl ServerCertVerifier for FileThenSystem {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let by = |verifier: &WebPkiServerVerifier| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        };
        by(&self.file).or_else(|error| self.system().and_then(|system| by(system).ok()).ok_or(error))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.file.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.file.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.file.supported_verify_schemes()
    }
}
