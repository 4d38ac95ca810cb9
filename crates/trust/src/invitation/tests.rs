use serde_json::{Value, json};

use super::*;
use crate::SiteKey;

const SECRET: [u8; 32] = *b"0123456789abcdefghijklmnopqrstuv";

fn site(last: u8) -> SiteId {
    format!("0199a2b4-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

fn key(seed: u8) -> SitePublicKey {
    SiteKey::from_seed([seed; 32]).public()
}

/// As made by the site `alps`.
fn invitation() -> Invitation {
    Invitation {
        urls: vec!["https://data.alps.example.org".into(), "https://192.0.2.7:8443/percale".into()],
        name: "alps".into(),
        id: site(1),
        key: key(7),
        expires: "2026-11-22T08:30:00Z".parse().unwrap(),
        secret: Secret::new(SECRET),
    }
}

fn made(urls: &[&str], name: &str) -> Result<Invitation, Error> {
    let urls = urls.iter().map(|url| (*url).to_owned()).collect();
    Invitation::new(urls, name.into(), site(1), key(7), invitation().expires)
}

fn refused(line: &str) -> String {
    let error = line.parse::<Invitation>().expect_err("the invitation was accepted");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    error.to_string()
}

fn json_of(invitation: &Invitation) -> Value {
    let line = invitation.to_string();
    serde_json::from_slice(&BASE64.decode(line.strip_prefix(PREFIX).unwrap()).unwrap()).unwrap()
}

fn line_of(json: &str) -> String {
    format!("{PREFIX}{}", BASE64.encode(json))
}

#[test]
fn a_new_invitation_is_read_back() {
    let new = made(&["https://data.alps.example.org"], "alps").unwrap();
    let line = new.to_string();
    assert_eq!(line.parse::<Invitation>().unwrap(), new);
    assert!(line.bytes().all(|byte| byte.is_ascii_graphic()));
    let next = made(&["https://data.alps.example.org"], "alps").unwrap();
    assert_ne!(new.secret_hash(), next.secret_hash(), "each has its own secret");
}

/// A line as the first release made it, its hash and a proof. It ended long ago, which is the caller's to find out.
#[test]
fn the_first_form_is_still_read_and_written() {
    let sample = include_str!("../../samples/invitation-v1.txt");
    assert_eq!(format!("{}\n", invitation()), sample);
    assert_eq!(sample.parse::<Invitation>().unwrap(), invitation());
    // Computed from the formulas with Python's hashlib and hmac.
    let hash = invitation().secret_hash();
    assert_eq!(hex::encode(hash), "e90dfc1aff7d3d22cb3eb13e1a21f734462d7ceecec29edc7120350ebb362923");
    let proof = invitation().prove(&key(8), site(2)).unwrap();
    assert_eq!(hex::encode(proof), "cfca422032eb11d0243eb3f824ec4956c3dcffdbf6bccce8a01ff19a7a1d5afe");
}

#[test]
fn lines_may_be_broken_on_their_way() {
    let line = invitation().to_string();
    let (first, second) = line.split_at(76);
    assert_eq!(format!("  {first}\r\n\t{second}\n").parse::<Invitation>().unwrap(), invitation());
}

#[test]
fn the_secret_is_not_shown() {
    let shown = format!("{:?}", invitation());
    assert!(shown.contains("<redacted>") && shown.contains("alps"), "{shown}");
    assert!(!shown.contains(&BASE64.encode(SECRET)) && !shown.contains("48, 49"), "{shown}");
    // Nor by an error about a line that is otherwise good.
    let mut json = json_of(&invitation());
    let secret = format!("{}A", json["secret"].as_str().unwrap());
    json["secret"] = secret.clone().into();
    assert!(!refused(&line_of(&json.to_string())).contains(&secret));
}

#[test]
fn an_altered_line_is_refused_or_another_invitation() {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let line = invitation().to_string();
    for place in 0..line.len() {
        for other in ALPHABET.iter().filter(|other| **other != line.as_bytes()[place]) {
            let mut altered = line.clone().into_bytes();
            altered[place] = *other;
            if let Ok(read) = String::from_utf8(altered).unwrap().parse::<Invitation>() {
                assert_ne!(read, invitation(), "byte {place} as {}", char::from(*other));
            }
        }
    }
    for length in 0..line.len() {
        refused(&line[..length]);
    }
    refused(&format!("{line}A"));
    refused(&format!("{line}="));
}

#[test]
fn a_proof_is_for_one_site_with_one_key() {
    let hash = invitation().secret_hash();
    let proof = invitation().prove(&key(8), site(2)).unwrap();
    assert!(Invitation::check_proof(&hash, &key(8), site(2), &proof));
    assert!(!Invitation::check_proof(&hash, &key(9), site(2), &proof), "another key");
    assert!(!Invitation::check_proof(&hash, &key(8), site(3), &proof), "another id");
    assert!(!Invitation::check_proof(&hash, &key(8), site(2), &hash), "the hash is no proof");
    for place in 0..32 {
        let (mut altered, mut other) = (proof, hash);
        altered[place] ^= 1;
        other[place] ^= 1;
        assert!(!Invitation::check_proof(&hash, &key(8), site(2), &altered));
        assert!(!Invitation::check_proof(&other, &key(8), site(2), &proof));
    }
}

#[test]
fn a_site_does_not_join_itself() {
    for (key, id) in [(key(7), site(2)), (key(8), site(1))] {
        let error = invitation().prove(&key, id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("itself"), "{error}");
    }
}

#[test]
fn other_versions_are_refused_by_name() {
    // Whatever else a later version may hold.
    for json in [json!({"v": 2}), json!({"v": 2, "urls": "x", "proof": []})] {
        let message = refused(&line_of(&json.to_string()));
        assert!(message.contains("version 2") && message.contains("update"), "{message}");
    }
    for json in ["{}", "[]", "", r#"{"v":"1"}"#, r#"{"v":-1}"#, r#"{"v":1}"#] {
        assert!(refused(&line_of(json)).contains("damaged"), "{json}");
    }
}

#[test]
fn each_field_is_there_once_and_no_other() {
    let whole = json_of(&invitation());
    for name in whole.as_object().unwrap().keys() {
        let mut json = whole.clone();
        json.as_object_mut().unwrap().remove(name);
        refused(&line_of(&json.to_string()));
        json[name] = Value::Null;
        refused(&line_of(&json.to_string()));
        let twice = whole.to_string().replacen('{', &format!("{{\"{name}\":{},", whole[name]), 1);
        refused(&line_of(&twice));
    }
    let mut json = whole.clone();
    json["note"] = "hello".into();
    refused(&line_of(&json.to_string()));
    // The same in another order or with spaces is not the line that was made.
    refused(&line_of(&serde_json::to_string_pretty(&whole).unwrap()));
}

#[test]
fn urls_and_names_are_bounded_when_made_and_when_read() {
    let long = format!("https://a.org/{}", "x".repeat(MAX_INVITATION_URL_BYTES - 14));
    for url in [
        "https://a.org",
        "https://a.org/",
        "https://a.org:8443/site/alps",
        "https://[2001:db8::7]",
        "https://[2001:db8::7]:8443",
        "https://localhost:1",
        &long,
    ] {
        let new = made(&[url], "alps").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(new.to_string().parse::<Invitation>().unwrap(), new);
    }
    let too_long = format!("{long}x");
    for url in [
        "",
        "http://a.org",
        "HTTPS://a.org",
        "https://",
        "https:///path",
        "https://a.org:",
        "https://a.org:0",
        "https://a.org:65536",
        "https://a.org:+1",
        "https://user@a.org",
        "https://a.org/?x",
        "https://a.org#x",
        "https://a .org",
        "https://ä.org",
        "https://a.org/\n",
        "https://2001:db8::7",
        "https://[a.org]",
        "https://[2001:db8::7",
        "ftp://a.org",
        &too_long,
    ] {
        let error = made(&["https://a.org", url], "alps").expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.to_string().contains("URL"), "{error}");
        let read = Invitation { urls: vec![url.into()], ..invitation() };
        assert!(refused(&read.to_string()).contains("URL"));
    }
    let many = vec!["https://a.org"; MAX_INVITATION_URLS];
    made(&many, "alps").unwrap();
    for urls in [vec![], [&many[..], &many[..1]].concat()] {
        assert!(made(&urls, "alps").unwrap_err().to_string().contains("URLs"));
        let read = Invitation { urls: urls.iter().map(|url| (*url).into()).collect(), ..invitation() };
        assert!(refused(&read.to_string()).contains("URLs"));
    }
    for name in ["", "Alps", "a b", "a/b", &"x".repeat(64)] {
        assert_eq!(made(&["https://a.org"], name).unwrap_err().kind(), ErrorKind::InvalidRequest);
        refused(&Invitation { name: name.into(), ..invitation() }.to_string());
    }
}

#[test]
fn lines_are_bounded() {
    let long = format!("https://a.org/{}", "x".repeat(1500));
    let error = made(&[long.as_str(); 5], "alps").unwrap_err();
    assert!(error.to_string().contains("8192"), "{error}");
    assert!(refused(&format!("{PREFIX}{}", "A".repeat(8192))).contains("8192"));
    for junk in ["", PREFIX, "percale-invite", "https://a.org", "percale-invite:ä", "\u{0}"] {
        refused(junk);
    }
}
