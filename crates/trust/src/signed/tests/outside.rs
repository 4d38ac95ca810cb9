//! Signatures, headers, times and the set of claims: what holds of every form.

use super::*;

#[test]
fn other_keys_are_refused_and_of_several_each_is_good() {
    let stranger = SiteKey::from_seed([8; 32]);
    for form in forms() {
        let claims = form.claims().to_string();
        let theirs = json!({"typ": form.typ, "alg": "EdDSA", "kid": stranger.public().key_id()});
        assert_eq!(
            form.refused(&forge(&theirs.to_string(), &claims, &stranger)),
            SignedError::UnknownKey(stranger.public().key_id())
        );
        // A stranger who names the site's key.
        let header = form.header().to_string();
        assert_eq!(form.refused(&forge(&header, &claims, &stranger)), SignedError::BadSignature);
        let keys = [stranger.public(), key().public()];
        let both = Signatory { site: alps(), name: "alps", keys: &keys, issuers: &[ISSUER.into()] };
        assert_eq!((form.read)(&form.text, &both, &clock()), Ok(()));
        let none = Signatory { keys: &[], ..both };
        assert!(matches!((form.read)(&form.text, &none, &clock()), Err(SignedError::UnknownKey(_))));
    }
}

#[test]
fn what_another_site_signed_is_refused() {
    for form in forms() {
        let other =
            Signatory { site: crete(), name: "alps", keys: &[key().public()], issuers: &[ISSUER.to_owned()] };
        assert_eq!((form.read)(&form.text, &other, &clock()), Err(SignedError::WrongIssuer), "{}", form.typ);
    }
}

#[test]
fn one_form_is_not_taken_for_another() {
    let forms = forms();
    for form in &forms {
        for other in &forms {
            let read = form.read(&other.text);
            if form.typ == other.typ {
                assert_eq!(read, Ok(()));
            } else {
                let expected = SignedError::WrongType { expected: form.typ, found: other.typ.into() };
                assert_eq!(read, Err(expected));
            }
        }
        for header in [
            json!({"alg": "EdDSA"}),
            json!({"alg": "EdDSA", "typ": null}),
            json!({"alg": "EdDSA", "typ": "JWT"}),
        ] {
            let text = forge(&header.to_string(), &form.claims().to_string(), &key());
            assert!(matches!(form.refused(&text), SignedError::WrongType { .. }), "{header}");
        }
    }
    // Tokens are signed with the same key.
    let request = IssueRequest {
        subject: Identity::local("alice"),
        groups: vec![],
        scopes: vec![],
        ttl: Duration::from_secs(60),
        now: at(0),
    };
    let token = TokenIssuer::new(&key(), alps()).issue(request).unwrap();
    let verifier = TokenVerifier::new(key().public(), baltic());
    for form in &forms {
        assert!(matches!(form.refused(token.secret.expose()), SignedError::WrongType { .. }));
        assert!(verifier.verify(&form.text, at(0)).is_err(), "{} was taken for a token", form.typ);
    }
}

#[test]
fn other_algorithms_are_refused() {
    for form in forms() {
        for algorithm in ["none", "None", "HS256", "ES256", "eddsa", ""] {
            let mut header = form.header();
            header["alg"] = algorithm.into();
            let text = forge(&header.to_string(), &form.claims().to_string(), &key());
            assert_eq!(form.refused(&text), SignedError::WrongAlgorithm(algorithm.into()));
            let unsigned = text.rsplit_once('.').unwrap().0;
            assert_eq!(form.refused(&format!("{unsigned}.")), SignedError::WrongAlgorithm(algorithm.into()));
        }
        // The public key taken for the secret of an HMAC, under a header that says EdDSA.
        let signed = form.text.rsplit_once('.').unwrap().0;
        let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key().public().0);
        let tag = BASE64.encode(aws_lc_rs::hmac::sign(&secret, signed.as_bytes()));
        assert_eq!(form.refused(&format!("{signed}.{tag}")), SignedError::BadSignature);
        assert_eq!(form.refused(&format!("{signed}.")), SignedError::BadSignature);
    }
}

#[test]
fn headers_say_what_they_must_and_nothing_else() {
    for form in forms() {
        let claims = form.claims().to_string();
        let mut further = form.header();
        further["jku"] = "https://evil.example.org/keys".into();
        let mut critical = form.header();
        critical["crit"] = json!(["b64"]);
        let unnamed = json!({"typ": form.typ, "alg": "EdDSA"});
        let twice = form.header().to_string().replacen('{', r#"{"alg":"EdDSA","#, 1);
        for header in [further.to_string(), critical.to_string(), unnamed.to_string(), twice, "[]".into()] {
            let error = form.refused(&forge(&header, &claims, &key()));
            assert!(is_malformed(&error), "{header}: {error}");
        }
    }
}

#[test]
fn every_altered_byte_is_noticed() {
    for form in forms() {
        for place in 0..form.text.len() {
            let mut bytes = form.text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            form.refused(&String::from_utf8(bytes).unwrap());
        }
        let parts: Vec<_> = form.text.split('.').collect();
        let richer = form.with_claim("scopes", json!(["manage:/"]));
        let theirs: Vec<_> = richer.split('.').collect();
        let mixed = format!("{}.{}.{}", parts[0], theirs[1], parts[2]);
        assert_eq!(form.refused(&mixed), SignedError::BadSignature);
    }
}

#[test]
fn times_are_judged_with_the_measured_skew() {
    for form in forms() {
        let read = |seconds: i64, measured: Option<u64>| {
            let clock = Clock::new(at(seconds), measured.map(Duration::from_secs));
            with_roster(|signatory| (form.read)(&form.text, signatory, &clock))
        };
        let (early, late) = (Err(SignedError::NotYetValid(at(0))), Err(SignedError::Expired(at(form.life))));
        // Never measured: 30 seconds.
        assert_eq!(read(-30, None), Ok(()));
        assert_eq!(read(-31, None), early);
        assert_eq!(read(form.life + 29, None), Ok(()));
        assert_eq!(read(form.life + 30, None), late);
        // Clocks 10 minutes apart.
        for (seconds, refused) in [(-600, &early), (form.life + 599, &late)] {
            assert_eq!(&read(seconds, None), refused);
            assert_eq!(read(seconds, Some(600)), Ok(()));
        }
        assert_eq!(read(-601, Some(600)), early);
        assert_eq!(read(form.life + 600, Some(600)), late);
        // Almost equal clocks count as 30 seconds apart, an hour as 15 minutes.
        assert_eq!(read(-30, Some(1)), Ok(()));
        assert_eq!(read(-901, Some(3600)), early);
        assert_eq!(read(form.life + 900, Some(3600)), late);
    }
    assert_eq!(SignedError::Expired(at(0)).code(), ErrorCode::TokenExpired);
    assert_eq!(SignedError::NotYetValid(at(0)).code(), ErrorCode::TokenInvalid);
}

#[test]
fn lives_are_bounded() {
    for form in forms() {
        let read = |iat: i64, nbf: i64, exp: i64| {
            let mut claims = form.claims();
            claims["iat"] = iat.into();
            claims["nbf"] = nbf.into();
            claims["exp"] = exp.into();
            form.read(&form.with_claims(&claims.to_string()))
        };
        assert_eq!(read(NOW, NOW, NOW + form.most), Ok(()));
        for (iat, nbf, exp) in [
            (NOW, NOW, NOW + form.most + 1),
            (NOW, NOW, NOW),
            (NOW, NOW, NOW - 1),
            (NOW, NOW - 1, NOW + 10),
            (NOW, NOW + 1, NOW + 10),
            (0, 0, i64::MAX),
            (i64::MIN, i64::MIN, i64::MAX),
            (i64::MAX, i64::MAX, i64::MIN),
        ] {
            let error = read(iat, nbf, exp).unwrap_err();
            assert!(is_out_of_bounds(&error), "{} {iat} {nbf} {exp}: {error}", form.typ);
        }
    }
}

#[test]
fn each_claim_is_there_once_and_no_other() {
    for form in forms() {
        let whole = form.claims();
        for name in whole.as_object().unwrap().keys() {
            let mut claims = whole.clone();
            let value = claims.as_object_mut().unwrap().remove(name).unwrap();
            let error = form.refused(&form.with_claims(&claims.to_string()));
            assert!(is_malformed(&error), "{} without {name}: {error}", form.typ);
            let twice = whole.to_string().replacen('{', &format!("{{\"{name}\":{value},"), 1);
            let error = form.refused(&form.with_claims(&twice));
            assert!(is_malformed(&error), "{} with {name} twice: {error}", form.typ);
        }
        let error = form.refused(&form.with_claim("only_on_sundays", true.into()));
        assert!(is_malformed(&error), "{error}");
        assert!(error.to_string().contains("only_on_sundays"), "{error}");
        for claims in ["", "null", "[]", "{}", "{"] {
            assert!(is_malformed(&form.refused(&form.with_claims(claims))), "{claims}");
        }
    }
}

#[test]
fn junk_and_what_is_too_long_are_refused() {
    let many = (0..2000).map(|number| format!("group-{number}@site:alps").parse().unwrap()).collect();
    let crowded = Caller { groups: many, ..alice() };
    for error in [
        Statement { caller: Some(crowded.clone()), ..statement() }.sign(&key()).unwrap_err(),
        Delegation { caller: crowded.clone(), ..delegation() }.sign(&key()).unwrap_err(),
        Ticket { user: crowded.clone(), ..ticket() }.sign(&key()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("16384"), "{error}");
    }
    let groups: Vec<String> = crowded.groups.iter().map(Identity::to_string).collect();
    for form in forms() {
        let long = form.with_claim("groups", json!(groups));
        assert_eq!(form.refused(&long), SignedError::TooLong(long.len()));
        assert_eq!(claimed_site(&long), Err(SignedError::TooLong(long.len())));
        for text in ["", ".", "..", "...", "a.b.c", "e30.e30.e30", "\u{0}", "ä.ö.ü", "a.b.c.d"] {
            assert!(is_malformed(&form.refused(text)), "{text:?}");
            assert!(claimed_site(text).is_err(), "{text:?}");
        }
        let padded = format!("{}=", form.text);
        assert!(is_malformed(&form.refused(&padded)));
        assert!(is_malformed(&form.refused(&format!("{}.", form.text))));
    }
}
