use super::*;

const NOW: i64 = 1_795_000_000;

fn now() -> Timestamp {
    seconds(NOW)
}

fn site() -> SiteId {
    "0199a2b4-0000-7000-8000-000000000001".parse().unwrap()
}

fn key() -> SiteKey {
    SiteKey::from_seed([7; 32])
}

fn issuer() -> TokenIssuer {
    TokenIssuer::new(&key(), site())
}

fn verifier() -> TokenVerifier {
    TokenVerifier::new(key().public(), site())
}

fn request() -> IssueRequest {
    IssueRequest {
        subject: Identity::local("alice"),
        groups: vec![Identity::local("wp3")],
        scopes: vec!["read:/climate/a b".parse().unwrap()],
        ttl: Duration::from_secs(600),
        now: now(),
    }
}

fn claims() -> Claims {
    Claims {
        iss: "local".into(),
        aud: site().to_string(),
        sub: "alice".into(),
        groups: vec![],
        scopes: vec![],
        iat: NOW,
        nbf: NOW,
        exp: NOW + 600,
        jti: "0199a2b4-0000-7000-8000-0000000000aa".parse().unwrap(),
    }
}

fn refused(text: &str) -> TokenError {
    verifier().verify(text, now()).expect_err("the token was accepted")
}

#[test]
fn what_was_issued_is_read_back() {
    let issued = issuer().issue(request()).unwrap();
    let read = verifier().verify(issued.secret.expose(), now()).unwrap();
    assert_eq!(read.caller.user, Some(Identity::local("alice")));
    assert_eq!(read.caller.groups, [Identity::local("wp3")]);
    assert_eq!(read.caller.scopes, ["read:/climate/a b".parse().unwrap()]);
    assert_eq!((read.id, read.issued, read.expires), (issued.id, issued.issued, issued.expires));
    assert_eq!(issued.expires.since(issued.issued), Duration::from_secs(600));
    assert!(!format!("{issued:?}").contains(issued.secret.expose()));
}

/// A token as the first release made it; it must be read as long as tokens of this form may be about.
#[test]
fn the_first_form_is_still_read_and_written() {
    let sample = include_str!("../../samples/token-v1.jwt").trim();
    assert_eq!(issuer().sign(&claims()).unwrap(), sample);
    assert_eq!(verifier().verify(sample, now()).unwrap().id, claims().jti);
}

#[test]
fn times_are_compared_with_leeway() {
    let text = issuer().sign(&claims()).unwrap();
    let at = |offset: i64| verifier().verify(&text, seconds(NOW + offset)).map(|_| ());
    let expires = seconds(NOW + 600);
    assert_eq!(at(629), Ok(()));
    assert_eq!(at(630), Err(TokenError::Expired(expires)));
    assert_eq!(at(-30), Ok(()));
    assert_eq!(at(-31), Err(TokenError::NotYetValid(now())));
    assert_eq!(at(630).unwrap_err().code(), ErrorCode::TokenExpired);
    assert_eq!(at(-31).unwrap_err().code(), ErrorCode::TokenInvalid);
    let strict = verifier().with_leeway(Duration::ZERO);
    assert_eq!(strict.verify(&text, expires), Err(TokenError::Expired(expires)));
    assert!(strict.verify(&text, seconds(NOW + 599)).is_ok());
}

#[test]
fn other_algorithms_are_refused() {
    let payload = BASE64.encode(serde_json::to_vec(&claims()).unwrap());
    for (alg, signature) in [("none", ""), ("None", ""), ("ES256", "AAAA"), ("", "AAAA")] {
        let header = BASE64.encode(format!(r#"{{"typ":"JWT","alg":"{alg}"}}"#));
        assert_eq!(
            refused(&format!("{header}.{payload}.{signature}")),
            TokenError::WrongAlgorithm(alg.into())
        );
    }
    // The public key taken for the secret of an HMAC: the classic confusion.
    let secret = EncodingKey::from_secret(&key().public().0);
    let confused = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
    assert_eq!(refused(&confused), TokenError::WrongAlgorithm("HS256".into()));
    // HMAC bytes under a header that says EdDSA.
    let (_, signature) = confused.rsplit_once('.').unwrap();
    let good = issuer().sign(&claims()).unwrap();
    let (signed, _) = good.rsplit_once('.').unwrap();
    assert_eq!(refused(&format!("{signed}.{signature}")), TokenError::BadSignature);
}

#[test]
fn every_altered_byte_is_noticed() {
    let good = issuer().sign(&claims()).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(refused(&text).code(), ErrorCode::TokenInvalid, "byte {at}");
    }
    let parts: Vec<_> = good.split('.').collect();
    let richer = Claims { scopes: vec!["admin".into()], ..claims() };
    let forged = BASE64.encode(serde_json::to_vec(&richer).unwrap());
    assert_eq!(refused(&format!("{}.{forged}.{}", parts[0], parts[2])), TokenError::BadSignature);
    let stranger = TokenIssuer::new(&SiteKey::from_seed([8; 32]), site());
    assert_eq!(refused(&stranger.sign(&claims()).unwrap()), TokenError::BadSignature);
}

#[test]
fn other_issuers_sites_and_unreadable_claims_are_refused() {
    let signed = |claims: &Claims| issuer().sign(claims).unwrap();
    let foreign = Claims { iss: "https://id.example.org".into(), ..claims() };
    assert_eq!(refused(&signed(&foreign)), TokenError::WrongIssuer("https://id.example.org".into()));
    let elsewhere = Claims { aud: SiteId::new().to_string(), ..claims() };
    assert_eq!(refused(&signed(&elsewhere)), TokenError::WrongAudience);
    for broken in [
        Claims { sub: String::new(), ..claims() },
        Claims { sub: "a\nb".into(), ..claims() },
        Claims { groups: vec!["x".repeat(256)], ..claims() },
        Claims { scopes: vec!["shred:/climate".into()], ..claims() },
    ] {
        assert!(matches!(refused(&signed(&broken)), TokenError::Malformed(_)), "{broken:?}");
    }
}

#[test]
fn a_missing_claim_is_not_taken_for_an_empty_one() {
    let whole = serde_json::to_value(claims()).unwrap();
    for missing in whole.as_object().unwrap().keys() {
        let mut claims = whole.clone();
        claims.as_object_mut().unwrap().remove(missing);
        let key = EncodingKey::from_ed_der(key().pkcs8());
        let text = jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), &claims, &key).unwrap();
        assert!(matches!(refused(&text), TokenError::Malformed(_)), "without {missing}");
    }
}

#[test]
fn junk_is_refused() {
    for text in ["", ".", "..", "...", "a.b.c", "e30.e30.e30", "\u{0}", "Bearer x", "ä.ö.ü", "a.b.c.d"] {
        assert!(matches!(refused(text), TokenError::Malformed(_)), "{text:?}");
    }
    assert_eq!(refused(&"a".repeat(16_385)), TokenError::TooLong(16_385));
}

#[test]
fn requests_out_of_bounds_are_refused() {
    let elsewhere = Identity { issuer: Issuer("https://id.example.org".into()), name: "alice".into() };
    let many = (0..2000).map(|number| Identity::local(format!("group-{number}"))).collect();
    for wrong in [
        IssueRequest { subject: elsewhere.clone(), ..request() },
        IssueRequest { groups: vec![elsewhere], ..request() },
        IssueRequest { subject: Identity::local(""), ..request() },
        IssueRequest { subject: Identity::local("a\u{7}"), ..request() },
        IssueRequest { ttl: Duration::ZERO, ..request() },
        IssueRequest { ttl: MAX_LIFE + Duration::from_secs(1), ..request() },
        IssueRequest { groups: many, ..request() },
    ] {
        let error = issuer().issue(wrong).unwrap_err();
        assert_eq!((error.kind(), error.code()), (ErrorKind::InvalidRequest, ErrorCode::InvalidRequest));
    }
}

#[test]
fn tokens_of_a_key_before_are_good_until_its_time_is_over() {
    let (before, until) = (SiteKey::from_seed([6; 32]), now().after(Duration::from_secs(60)));
    let token = TokenIssuer::new(&before, site()).sign(&claims()).unwrap();
    assert_eq!(refused(&token), TokenError::BadSignature);
    let verifier = verifier().also(SiteKey::from_seed([5; 32]).public(), until).also(before.public(), until);
    assert_eq!(verifier.verify(&token, now()).unwrap().id, claims().jti);
    assert_eq!(verifier.verify(&token, until).unwrap_err(), TokenError::BadSignature);
    assert!(verifier.verify(&issuer().sign(&claims()).unwrap(), until).is_ok());
    let stranger = TokenIssuer::new(&SiteKey::from_seed([8; 32]), site()).sign(&claims()).unwrap();
    assert_eq!(verifier.verify(&stranger, now()).unwrap_err(), TokenError::BadSignature);
}
