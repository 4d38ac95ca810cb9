//! Who may use what was signed, and for whom.

use super::*;

#[test]
fn what_is_meant_for_others_is_refused() {
    for form in forms() {
        let elsewhere = form.with_claim("aud", crete().to_string().into());
        assert_eq!(form.refused(&elsewhere), SignedError::WrongAudience, "{}", form.typ);
    }
    // A site that was asked cannot ask the next with it.
    let text = statement().sign(&key()).unwrap();
    let asked_next =
        with_roster(|signatory| Statement::verify(&text, signatory, baltic(), crete(), &clock()));
    assert_eq!(asked_next, Err(SignedError::WrongAudience));
}

#[test]
fn only_the_bearers_that_are_named_may_use_it() {
    let direct = statement().sign(&key()).unwrap();
    let through_crete = relayed().sign(&key()).unwrap();
    for (text, from, is_good) in [
        (&direct, alps(), true),
        (&direct, crete(), false),
        (&direct, baltic(), false),
        (&through_crete, crete(), true),
        (&through_crete, alps(), true),
        (&through_crete, baltic(), false),
        (&through_crete, SiteId(uuid(4)), false),
    ] {
        let read = read_statement_from(text, from, &clock()).map(drop);
        assert_eq!(read, if is_good { Ok(()) } else { Err(SignedError::WrongBearer) }, "from {from}");
    }
    let text = delegation().sign(&key()).unwrap();
    for from in [alps(), crete()] {
        let read = with_roster(|signatory| Delegation::verify(&text, signatory, from, &clock()));
        assert_eq!(read, Err(SignedError::WrongBearer), "from {from}, which is not the holder");
    }
}

#[test]
fn what_came_through_a_relay_is_good_once() {
    let guard = ReplayGuard::new(10);
    let text = relayed().sign(&key()).unwrap();
    let accept = || {
        let statement = read_statement_from(&text, crete(), &clock()).unwrap();
        !statement.is_once_only() || guard.first_use(statement.id, statement.expires, clock().now())
    };
    assert!(accept());
    assert!(!accept());
    assert!(!statement().is_once_only());
    assert!(relayed().is_once_only());
}

/// Signs it and checks what was refused: by our own signing, and, signed by somebody else, by our reading.
fn refused_both_ways(caller: &Caller) -> BTreeSet<&'static str> {
    let kind = |error: crate::Error| assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{error}");
    kind(Statement { caller: Some(caller.clone()), ..statement() }.sign(&key()).unwrap_err());
    kind(Delegation { caller: caller.clone(), ..delegation() }.sign(&key()).unwrap_err());
    let user = caller.user.as_ref().map(Identity::to_string);
    let groups: Vec<String> = caller.groups.iter().map(Identity::to_string).collect();
    forms()
        .iter()
        .map(|form| {
            let mut claims = form.claims();
            claims["user"] = json!(user);
            claims["groups"] = json!(groups);
            if claims.get("scopes").is_some() {
                claims["scopes"] = json!(caller.scopes);
            }
            match form.read(&form.with_claims(&claims.to_string())) {
                Ok(()) => "accepted",
                Err(SignedError::OutOfBounds(_)) => "out of bounds",
                Err(SignedError::Malformed(_)) => "malformed",
                Err(other) => panic!("{}: {other}", form.typ),
            }
        })
        .collect()
}

#[test]
fn identities_as_seen_at_home_are_refused() {
    let home = Identity::local("alice");
    let as_user = Caller { user: Some(home.clone()), ..alice() };
    assert_eq!(refused_both_ways(&as_user), BTreeSet::from(["out of bounds"]));
    let as_group = Caller { groups: vec![home], ..alice() };
    assert_eq!(refused_both_ways(&as_group), BTreeSet::from(["out of bounds"]));
    // Written so that a reader could take it for a user of another issuer.
    let shaped = Identity { issuer: Issuer("alps".into()), name: "alice".into() };
    let error = Statement { caller: Some(Caller::user(shaped)), ..statement() }.sign(&key()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    for text in ["alice@local", "", "a\nb@site:alps", "alice@site:Alps", "@site:alps"] {
        for form in forms() {
            let error = form.refused(&form.with_claim("user", text.into()));
            assert!(is_malformed(&error) || is_out_of_bounds(&error), "{text:?}: {error}");
        }
    }
}

#[test]
fn the_scope_admin_does_not_cross() {
    let both = Caller { scopes: vec![Scope::Admin, "read:/climate".parse().unwrap()], ..alice() };
    for caller in [both, Caller { scopes: vec![Scope::Admin], ..alice() }] {
        for error in [
            Statement { caller: Some(caller.clone()), ..statement() }.sign(&key()).unwrap_err(),
            Delegation { caller: caller.clone(), ..delegation() }.sign(&key()).unwrap_err(),
            Ticket { user: caller.clone(), ..ticket() }.sign(&key()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(error.to_string().contains("admin"), "{error}");
        }
    }
    let [statement, delegation, ticket] = forms();
    for form in [&statement, &delegation] {
        let error = form.refused(&form.with_claim("scopes", json!(["admin"])));
        assert!(is_out_of_bounds(&error), "{error}");
        assert!(is_malformed(&form.refused(&form.with_claim("scopes", json!(["shred:/climate"])))));
    }
    assert!(is_malformed(&ticket.refused(&ticket.with_claim("op", "admin".into()))));
}

#[test]
fn a_site_vouches_for_its_own_only() {
    let stranger = |text: &str| -> Identity { text.parse().unwrap() };
    for text in [
        "alice@site:baltic",
        "alice@site:alpsx",
        "alice@https://other.example.org",
        "a@https://id.example.org/",
    ] {
        let who = stranger(text);
        let expected = SignedError::NotVouched { site: "alps".into(), identity: who.clone() };
        for form in forms() {
            assert_eq!(form.refused(&form.with_claim("user", text.into())), expected);
            let groups = json!(["wp3@site:alps", text]);
            assert_eq!(form.refused(&form.with_claim("groups", groups)), expected);
        }
        assert_eq!(vouches("alps", &[ISSUER.into()], &Caller::user(who)), Err(expected));
    }
    // Not even if the roster were to assign it such issuers.
    let issuers = ["local".to_owned(), "site:baltic".to_owned()];
    for text in ["alice", "alice@site:baltic"] {
        assert!(vouches("alps", &issuers, &Caller::user(stranger(text))).is_err(), "{text}");
    }
    assert_eq!(vouches("alps", &[ISSUER.into()], &alice()), Ok(()));
    assert!(vouches("alps", &[], &alice()).is_err());
}

#[test]
fn who_must_be_named_is_named() {
    let [statement_form, delegation_form, ticket_form] = forms();
    let nobody = Caller { user: None, groups: vec![], scopes: alice().scopes };
    assert!(Statement { caller: Some(nobody.clone()), ..statement() }.sign(&key()).is_err());
    assert!(Delegation { caller: nobody.clone(), ..delegation() }.sign(&key()).is_err());
    assert!(
        Delegation { caller: Caller { scopes: vec![], ..alice() }, ..delegation() }.sign(&key()).is_err()
    );
    assert!(Ticket { user: Caller { user: None, ..alice() }, ..ticket() }.sign(&key()).is_err());
    // Groups or scopes without a user are neither a user's nor the site's own.
    assert!(is_out_of_bounds(&statement_form.refused(&statement_form.with_claim("user", Value::Null))));
    assert!(is_malformed(&delegation_form.refused(&delegation_form.with_claim("user", Value::Null))));
    let unlimited = delegation_form.with_claim("scopes", json!([]));
    assert!(is_out_of_bounds(&delegation_form.refused(&unlimited)));
    assert!(is_out_of_bounds(&ticket_form.refused(&ticket_form.with_claim("user", Value::Null))));
}
