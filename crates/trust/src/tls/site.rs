//! TLS between sites (`docs/design/trust.md`, "Connections").
//!
//! **Participants.** A site that dials, and one that is dialled at the port that all its clients use. **Goals.** Each
//! learns for certain which key the other holds. **Non-goals.** To say which site has that key, and whether it may do
//! anything: that is the roster's. **Messages.** The dialler offers the application protocol [`SITE_ALPN`]; both show a
//! certificate signed with their own site key and sign the handshake with it (RFC 8446, 4.4.3). Names, dates, authorities and
//! the signature within the certificate mean nothing, since the handshake proves what matters: who holds the key.
//! **Failure.** A dialler that meets another key than it has pinned ends the handshake with an error that
//! [`is_unexpected_key`] recognises. Sessions are not resumed, since a resumed one proves no key. **Compatibility.** TLS 1.3
//! only.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use percale_core::Timestamp;
use percale_core::ids::SiteId;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ED25519};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, CommonState, ConfigBuilder, DigitallySignedStruct,
    DistinguishedName as AuthorityName, PeerIncompatible, ProtocolVersion, ServerConfig, SignatureScheme,
};

use super::provider;
use crate::{Error, ErrorKind, SiteKey, SitePublicKey};

/// The application protocol of connections between sites. HTTP/1.1 is spoken on them as on any other.
pub const SITE_ALPN: &[u8] = b"percale-site";

/// `SubjectPublicKeyInfo` of an Ed25519 key up to the key itself (RFC 8410, sections 3 and 4). There are no parameters, so
/// DER has only this one form.
const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// What a site shows to other sites: its key in a certificate that it signed itself. Made anew in memory at each start.
#[derive(Clone)]
pub struct SiteCertificate {
    certified: Arc<CertifiedKey>,
    public: SitePublicKey,
}

impl SiteCertificate {
    /// Makes the certificate. It is valid from now to the year 9999; other sites do not look at that.
    ///
    /// # Errors
    /// [`ErrorKind::Crypto`].
    pub fn new(key: &SiteKey, site: SiteId, now: Timestamp) -> Result<Self, Error> {
        let failed = |error: rcgen::Error| {
            Error::new(ErrorKind::Crypto, "cannot make the site's certificate").with_source(error)
        };
        let der = PrivatePkcs8KeyDer::from(key.pkcs8());
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519).map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("Percale site {site}"));
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + now.since(Timestamp::EPOCH);
        // RFC 5280, 4.1.2.5: for a certificate without an end.
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        let certificate = params.self_signed(&pair).map_err(failed)?;
        let certified = CertifiedKey::from_der(vec![certificate.into()], der.clone_key().into(), &provider())
            .map_err(|error| {
                Error::new(ErrorKind::Crypto, "cannot use the site's certificate").with_source(error)
            })?;
        Ok(Self { certified: Arc::new(certified), public: key.public() })
    }

    /// Returns the key that it shows.
    pub fn public(&self) -> SitePublicKey {
        self.public
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for SiteCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteCertificate").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Returns the Ed25519 key in the peer's own certificate. Only for a connection on which the handshake was completed
/// with one of the configurations of this module; see [`site_peer`].
pub fn peer_key(certificates: Option<&[CertificateDer<'_>]>) -> Option<SitePublicKey> {
    let certificate = ParsedCertificate::try_from(certificates?.first()?).ok()?;
    let info = certificate.subject_public_key_info();
    let key = info.as_ref().strip_prefix(&ED25519_SPKI)?;
    Some(SitePublicKey(key.try_into().ok()?))
}

/// Returns the key that the other side of an established connection proved to hold, if this is a connection between
/// sites: TLS 1.3 and [`SITE_ALPN`]. Nothing for ordinary clients, whatever they show.
pub fn site_peer(session: &CommonState) -> Option<SitePublicKey> {
    let is_between_sites = session.alpn_protocol() == Some(SITE_ALPN)
        && session.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        && !session.is_handshaking();
    if is_between_sites { peer_key(session.peer_certificates()) } else { None }
}

/// Returns the dialling side of a connection between sites. It shows `own`, and accepts a server that proves to hold one
/// of the `pinned` keys, under whatever name.
///
/// With another key the handshake ends with `rustls::Error::InvalidCertificate` of
/// [`CertificateError::ApplicationVerificationFailure`]; see [`is_unexpected_key`].
///
/// # Errors
/// [`ErrorKind::Crypto`].
pub fn site_client_config(own: &SiteCertificate, pinned: Vec<SitePublicKey>) -> Result<ClientConfig, Error> {
    Ok(dialling(showing(own, pinning(Some(pinned))?)))
}

/// Returns the dialling side of a connection with whoever answers, whatever its key. Only for asking for what proves
/// itself, such as a [`KeyChange`](crate::signed::KeyChange): nothing that is secret may be sent, nothing else believed.
///
/// # Errors
/// [`ErrorKind::Crypto`].
pub fn unpinned_client_config(own: &SiteCertificate) -> Result<ClientConfig, Error> {
    Ok(dialling(showing(own, pinning(None)?)))
}

/// Returns the side of a client that another site has sent to one that holds one of the `pinned` keys. It shows nothing
/// itself, so the connection has no [`site_peer`], and on it the client is one like any other. In all else as
/// [`site_client_config`].
///
/// # Errors
/// [`ErrorKind::Crypto`].
pub fn visitor_config(pinned: Vec<SitePublicKey>) -> Result<ClientConfig, Error> {
    Ok(dialling(pinning(Some(pinned))?.with_no_client_auth()))
}

fn showing(own: &SiteCertificate, config: ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig {
    config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own.certified())))
}

fn pinning(
    pinned: Option<Vec<SitePublicKey>>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let provider = provider();
    let verifier = PinnedKeys { pinned, algorithms: provider.signature_verification_algorithms };
    let builder =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).map_err(|error| {
            Error::new(ErrorKind::Crypto, "cannot set up TLS between sites").with_source(error)
        })?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

fn dialling(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![SITE_ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    // The name is not looked at, and need not be told to whoever listens on the way.
    config.enable_sni = false;
    config
}

/// Returns the dialled side of connections between sites, with the certificate that `certificate` resolves to. A client
/// certificate is asked for, but whoever shows none can still shake hands; such a connection has no [`site_peer`].
pub(super) fn site_server_config(certificate: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, Error> {
    let provider = provider();
    let verifier = AnySite { algorithms: provider.signature_verification_algorithms };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| Error::new(ErrorKind::Crypto, "cannot set up TLS between sites").with_source(error))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![SITE_ALPN.to_vec()];
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Tells whether a connection failed since the dialled server holds none of the pinned keys. Looks through the errors
/// that HTTP and I/O wrap around it.
pub fn is_unexpected_key(error: &(dyn StdError + 'static)) -> bool {
    // Bounded, since nothing forbids an error to name itself as its source.
    let mut next = Some(error);
    for _ in 0..16 {
        let Some(error) = next else { return false };
        if let Some(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) =
            error.downcast_ref()
        {
            return true;
        }
        // The source of an I/O error is that of the error inside, not that error.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inside.map(|inside| inside as &(dyn StdError + 'static)).or_else(|| error.source());
    }
    false
}

fn only_key(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<SitePublicKey, rustls::Error> {
    let key = if intermediates.is_empty() { peer_key(Some(std::slice::from_ref(end_entity))) } else { None };
    key.ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// The dialler's check: the server holds a key that was pinned, or any if none was.
#[derive(Debug)]
struct PinnedKeys {
    pinned: Option<Vec<SitePublicKey>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedKeys {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match only_key(end_entity, intermediates) {
            Ok(key) if self.pinned.as_ref().is_none_or(|pinned| pinned.contains(&key)) => {
                Ok(ServerCertVerified::assertion())
            }
            _ => Err(rustls::Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// The server's check: the client holds the key that it shows. Whose key it is, is asked at its first request.
#[derive(Debug)]
struct AnySite {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnySite {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[AuthorityName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        only_key(end_entity, intermediates).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

fn no_tls12() -> rustls::Error {
    rustls::Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired)
}

#[cfg(test)]
mod tests;
