mod callers;
mod outside;

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use percale_core::access::{Denied, Permission, decide};
use percale_core::ids::{SpaceId, TaskId, TokenId, VersionId};
use percale_core::tree::RootHash;
use percale_core::{ByteRange, ObjectPath};
use serde_json::{Value, json};

use super::*;
use crate::{ErrorKind, IssueRequest, SiteKey, TokenIssuer, TokenVerifier};

const NOW: i64 = 1_795_000_000;
/// The issuer that is assigned to the site that signs.
const ISSUER: &str = "https://id.example.org";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros((NOW + seconds) * 1_000_000)
}

fn uuid(last: u8) -> uuid::Uuid {
    format!("0199a2b4-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

/// The site that signs.
fn alps() -> SiteId {
    SiteId(uuid(1))
}

/// The site that is asked.
fn baltic() -> SiteId {
    SiteId(uuid(2))
}

/// The relay.
fn crete() -> SiteId {
    SiteId(uuid(3))
}

fn key() -> SiteKey {
    SiteKey::from_seed([7; 32])
}

fn clock() -> Clock {
    Clock::new(at(0), None)
}

fn alice() -> Caller {
    Caller {
        user: Some("alice@site:alps".parse().unwrap()),
        groups: vec!["wp3@site:alps".parse().unwrap(), format!("ocean@{ISSUER}").parse().unwrap()],
        scopes: vec!["write:/climate/a b".parse().unwrap()],
    }
}

fn statement() -> Statement {
    Statement {
        issuer_site: alps(),
        audience: baltic(),
        caller: Some(alice()),
        via: None,
        issued: at(0),
        expires: at(60),
        id: TokenId(uuid(0xa1)),
    }
}

fn relayed() -> Statement {
    Statement { via: Some(crete()), id: TokenId(uuid(0xa2)), ..statement() }
}

fn of_the_site() -> Statement {
    Statement { caller: None, id: TokenId(uuid(0xa3)), ..statement() }
}

fn delegation() -> Delegation {
    Delegation {
        issuer_site: alps(),
        task: TaskId(uuid(0xb1)),
        holder: baltic(),
        caller: alice(),
        issued: at(0),
        expires: at(86_400),
        id: TokenId(uuid(0xa4)),
    }
}

fn receipt() -> ReceiptSeal {
    ReceiptSeal {
        site: alps(),
        task: TaskId(uuid(0xb1)),
        lines: 3,
        digest: RootHash([0xab; 32]),
        signed: at(0),
    }
}

#[test]
fn a_receipt_is_sealed_by_the_site_that_it_names() {
    let text = receipt().sign(&key()).unwrap();
    assert_eq!(text, include_str!("../../samples/receipt-v1.jwt").trim());
    assert_eq!(with_roster(|site| ReceiptSeal::verify(&text, site)).unwrap(), receipt());
    let other = Signatory { site: baltic(), name: "baltic", keys: &[key().public()], issuers: &[] };
    assert_eq!(ReceiptSeal::verify(&text, &other), Err(SignedError::WrongIssuer));
    let strange = SiteKey::from_seed([99; 32]).public();
    let keys = Signatory { site: alps(), name: "alps", keys: &[strange], issuers: &[] };
    assert!(matches!(ReceiptSeal::verify(&text, &keys), Err(SignedError::UnknownKey(_))));
    let delegation = delegation().sign(&key()).unwrap();
    let other = with_roster(|site| ReceiptSeal::verify(&delegation, site));
    assert!(matches!(other, Err(SignedError::WrongType { .. })));
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(with_roster(|site| ReceiptSeal::verify(&changed, site)).is_err(), "byte {at}");
    }
}

fn path() -> ObjectPath {
    "/climate/a b/t2m.nc".parse().unwrap()
}

fn ticket() -> Ticket {
    Ticket {
        issuer_site: alps(),
        audience: baltic(),
        user: Caller { scopes: vec![Scope::Path(Permission::Read, path())], ..alice() },
        space: SpaceId(uuid(0xc1)),
        path: path(),
        version: Some(VersionId(77)),
        ranges: vec![ByteRange::at(0, 1 << 20), ByteRange::at(4 << 20, 1 << 20)],
        op: TicketOp::Read,
        issued: at(0),
        expires: at(600),
        id: TokenId(uuid(0xa5)),
    }
}

/// Checks with what the roster of `baltic` says of `alps`, on a connection with `from`.
fn with_roster<T>(check: impl FnOnce(&Signatory<'_>) -> T) -> T {
    let signatory =
        Signatory { site: alps(), name: "alps", keys: &[key().public()], issuers: &[ISSUER.to_owned()] };
    check(&signatory)
}

fn read_statement_from(text: &str, from: SiteId, clock: &Clock) -> Result<Statement, SignedError> {
    with_roster(|signatory| Statement::verify(text, signatory, from, baltic(), clock))
}

fn read_statement(text: &str) -> Result<Statement, SignedError> {
    read_statement_from(text, alps(), &clock())
}

fn read_delegation(text: &str) -> Result<Delegation, SignedError> {
    with_roster(|signatory| Delegation::verify(text, signatory, baltic(), &clock()))
}

fn read_ticket(text: &str) -> Result<Ticket, SignedError> {
    with_roster(|signatory| Ticket::verify(text, signatory, baltic(), &clock()))
}

/// One of the forms, for what holds of all.
struct Form {
    typ: &'static str,
    text: String,
    /// In whole seconds.
    life: i64,
    most: i64,
    read: fn(&str, &Signatory<'_>, &Clock) -> Result<(), SignedError>,
}

impl Form {
    fn read(&self, text: &str) -> Result<(), SignedError> {
        with_roster(|signatory| (self.read)(text, signatory, &clock()))
    }

    fn refused(&self, text: &str) -> SignedError {
        self.read(text).expect_err(self.typ)
    }

    fn header(&self) -> Value {
        json!({"typ": self.typ, "alg": "EdDSA", "kid": key().public().key_id()})
    }

    fn claims(&self) -> Value {
        claims(&self.text)
    }

    /// Signs other claims in this form, as a site with bad intent or another release could.
    fn with_claims(&self, claims: &str) -> String {
        forge(&self.header().to_string(), claims, &key())
    }

    fn with_claim(&self, name: &str, value: Value) -> String {
        let mut claims = self.claims();
        claims[name] = value;
        self.with_claims(&claims.to_string())
    }
}

fn forms() -> [Form; 3] {
    [
        Form {
            typ: "percale-statement+jwt",
            text: statement().sign(&key()).unwrap(),
            life: 60,
            most: 5 * 60,
            read: |text, by, clock| Statement::verify(text, by, alps(), baltic(), clock).map(drop),
        },
        Form {
            typ: "percale-delegation+jwt",
            text: delegation().sign(&key()).unwrap(),
            life: 86_400,
            most: 30 * 86_400,
            read: |text, by, clock| Delegation::verify(text, by, baltic(), clock).map(drop),
        },
        Form {
            typ: "percale-ticket+jwt",
            text: ticket().sign(&key()).unwrap(),
            life: 600,
            most: 15 * 60,
            read: |text, by, clock| Ticket::verify(text, by, baltic(), clock).map(drop),
        },
    ]
}

fn claims(text: &str) -> Value {
    let part = text.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64.decode(part).unwrap()).unwrap()
}

fn forge(header: &str, claims: &str, key: &SiteKey) -> String {
    let signed = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signature = BASE64.encode(key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn is_malformed(error: &SignedError) -> bool {
    matches!(error, SignedError::Malformed(_))
}

fn is_out_of_bounds(error: &SignedError) -> bool {
    matches!(error, SignedError::OutOfBounds(_))
}

#[test]
fn each_form_is_read_back() {
    for statement in [statement(), of_the_site()] {
        assert_eq!(read_statement(&statement.sign(&key()).unwrap()), Ok(statement));
    }
    let text = relayed().sign(&key()).unwrap();
    assert_eq!(read_statement_from(&text, crete(), &clock()), Ok(relayed()));
    assert_eq!(read_delegation(&delegation().sign(&key()).unwrap()), Ok(delegation()));
    let anonymous =
        Caller { user: None, groups: vec![], scopes: vec![Scope::Path(Permission::Write, path())] };
    let upload = Ticket { version: None, ranges: vec![], op: TicketOp::Write, user: anonymous, ..ticket() };
    for ticket in [ticket(), upload] {
        assert_eq!(read_ticket(&ticket.sign(&key()).unwrap()), Ok(ticket));
    }
    for form in forms() {
        assert_eq!(claimed_site(&form.text), Ok(alps()));
    }
}

#[test]
fn constructors_cut_to_whole_seconds_and_make_new_ids() {
    let now = at(0).after(Duration::from_millis(999));
    let life = Duration::from_secs(300);
    let new = || Statement::new(alps(), baltic(), Some(alice()), Some(crete()), now, life);
    let made = new();
    assert_eq!((made.issued, made.expires, made.via), (at(0), at(300), Some(crete())));
    assert_ne!(made.id, new().id);
    let text = made.sign(&key()).unwrap();
    assert_eq!(read_statement_from(&text, crete(), &Clock::new(now, None)), Ok(made));
    let made = Delegation::new(alps(), delegation().task, baltic(), alice(), now, MAX_DELEGATION_LIFE);
    assert_eq!(read_delegation(&made.sign(&key()).unwrap()), Ok(made));
}

/// Texts as the first release made them; they must be read as long as such texts may be about.
#[test]
fn the_first_forms_are_still_read_and_written() {
    let sample = include_str!("../../samples/statement-v1.jwt").trim();
    assert_eq!(statement().sign(&key()).unwrap(), sample);
    assert_eq!(read_statement(sample), Ok(statement()));
    let sample = include_str!("../../samples/statement-relayed-v1.jwt").trim();
    assert_eq!(relayed().sign(&key()).unwrap(), sample);
    assert_eq!(read_statement_from(sample, crete(), &clock()), Ok(relayed()));
    let sample = include_str!("../../samples/statement-of-site-v1.jwt").trim();
    assert_eq!(of_the_site().sign(&key()).unwrap(), sample);
    assert_eq!(read_statement(sample), Ok(of_the_site()));
    let sample = include_str!("../../samples/delegation-v1.jwt").trim();
    assert_eq!(delegation().sign(&key()).unwrap(), sample);
    assert_eq!(read_delegation(sample), Ok(delegation()));
    let sample = include_str!("../../samples/ticket-v1.jwt").trim();
    assert_eq!(ticket().sign(&key()).unwrap(), sample);
    assert_eq!(read_ticket(sample), Ok(ticket()));
}

#[test]
fn a_ticket_is_for_its_bytes_version_and_operation() {
    let ticket = read_ticket(&ticket().sign(&key()).unwrap()).unwrap();
    for (start, end, is_covered) in [
        (0, 1 << 20, true),
        (100, 200, true),
        (4 << 20, 5 << 20, true),
        (0, (1 << 20) + 1, false),
        (1 << 20, 4 << 20, false),
        (0, 5 << 20, false),
        (5 << 20, u64::MAX, false),
    ] {
        assert_eq!(ticket.covers(ByteRange::new(start, end).unwrap()), is_covered, "{start}..{end}");
    }
    let whole = Ticket { ranges: vec![], ..ticket.clone() };
    assert!(whole.covers(ByteRange::new(0, u64::MAX).unwrap()));
    assert_eq!((ticket.version, ticket.op), (Some(VersionId(77)), TicketOp::Read));
    // The grants decide, and the ticket takes away.
    let anyone = percale_core::access::Subject::Anyone;
    let may = |permission, path: &str| {
        decide(&ticket.user, permission, &path.parse().unwrap(), [(&anyone, Permission::Manage)])
    };
    assert_eq!(may(Permission::Read, "/climate/a b/t2m.nc"), Ok(()));
    assert!(matches!(may(Permission::Write, "/climate/a b/t2m.nc"), Err(Denied::Scope { .. })));
    assert!(matches!(may(Permission::Read, "/climate/a b/other.nc"), Err(Denied::Scope { .. })));
    assert!(decide(&ticket.user, Permission::Read, &path(), []).is_err(), "nothing without a grant");
}

#[test]
fn a_ticket_without_a_version_is_for_all_that_is_below_its_path() {
    let path = |text: &str| -> ObjectPath { text.parse().unwrap() };
    let allows = |ticket: &Ticket, text: &str, version: Option<u64>| {
        ticket.allows(TicketOp::Read, &path(text), version.map(VersionId)).is_ok()
    };
    let one = ticket();
    assert!(allows(&one, "/climate/a b/t2m.nc", Some(77)) && allows(&one, "/climate/a b/t2m.nc", None));
    assert!(!allows(&one, "/climate/a b/t2m.nc", Some(78)));
    for other in ["/climate/a b", "/climate/a b/t2m.nc/x", "/climate/a b/other", "/ocean/a b/t2m.nc"] {
        assert!(!allows(&one, other, None) && !allows(&one, other, Some(77)), "{other}");
    }
    let below = Ticket { path: path("/climate/a b"), version: None, ..ticket() };
    assert!(allows(&below, "/climate/a b/t2m.nc", None) && allows(&below, "/climate/a b/c/d", Some(1)));
    assert!(!allows(&below, "/climate/a bc", None) && !allows(&below, "/climate", None));
    let why = below.allows(TicketOp::Write, &path("/climate/a b/c"), None).unwrap_err();
    assert_eq!(why, "the ticket is to read, not to write");
}

#[test]
fn ranges_of_a_ticket_have_one_form() {
    let [.., form] = forms();
    let many: Vec<_> = (0..=MAX_TICKET_RANGES as u64).map(|number| [number * 10, number * 10 + 1]).collect();
    assert_eq!(form.read(&form.with_claim("ranges", json!(many[1..]))), Ok(()));
    for wrong in [
        json!(many),
        json!([[5, 5]]),
        json!([[7, 5]]),
        json!([[0, 5], [5, 9]]),
        json!([[0, 5], [4, 9]]),
        json!([[6, 9], [0, 5]]),
        json!([[0, 5], [0, 5]]),
    ] {
        assert!(is_out_of_bounds(&form.refused(&form.with_claim("ranges", wrong.clone()))), "{wrong}");
    }
    for wrong in [json!([[-1, 5]]), json!([[0, 5, 9]]), json!([[0]]), json!(null), json!("0-5")] {
        assert!(is_malformed(&form.refused(&form.with_claim("ranges", wrong.clone()))), "{wrong}");
    }
    let touching = vec![ByteRange::at(0, 5), ByteRange::at(5, 5)];
    assert!(Ticket { ranges: touching, ..ticket() }.sign(&key()).is_err());
    assert!(Ticket { expires: at(901), ..ticket() }.sign(&key()).is_err());
}
