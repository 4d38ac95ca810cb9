//! Clients are sent to the site that has the bytes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use percale_api::away::Place;
use percale_client::get::GetOptions;
use percale_client::{Client as Own, ClientOptions};
use percale_core::access::{Caller, Identity, Issuer};
use percale_core::ids::{SpaceId, TokenId, VersionId};
use percale_core::{ByteRange, Timestamp};
use percale_federation::TICKET_LIFE;
use percale_mover::{Decoder, Frame};
use percale_server::app::system_caller;
use percale_trust::signed::{MAX_TICKET_LIFE, Ticket, TicketOp};
use reqwest::Method;
use reqwest::redirect::Policy;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::common::{Answer, Client, bytes, eventually, send};
use crate::fabric::Site;
use crate::liar::Liar;
use crate::tasks::{ended, good_at, large, submit, with_space, write_small};

/// An ordinary client that trusts the authorities of all these sites, as somebody who asks at one of them.
fn ordinary(who: &Client, sites: &[Site], policy: Policy) -> Client {
    let authority = |site: &Site| {
        let ca = std::fs::read(site.running.as_ref().unwrap().ca_path().unwrap()).unwrap();
        reqwest::Certificate::from_pem(&ca).unwrap()
    };
    let http = reqwest::Client::builder().no_proxy().redirect(policy);
    let http = http.tls_certs_only(sites.iter().map(authority)).build().unwrap();
    Client { http, ..who.clone() }
}

/// Our own client of a site, which knows the authority of that one only.
fn own(site: &Site, who: &Client, change: impl FnOnce(&mut ClientOptions)) -> Own {
    let mut options = ClientOptions::new(who.url.clone());
    options.ca_file = site.running.as_ref().unwrap().ca_path().map(Path::to_owned);
    options.token = who.token.clone().map(Into::into);
    change(&mut options);
    Own::new(options).unwrap()
}

async fn follow(client: &Client, method: Method, path: &str, says: &str) -> Answer {
    send(client.request(method, path).header("percale-redirect", says)).await
}

/// Asks at the address that a site gave, without a token.
async fn at(client: &Client, address: &str, fields: &[(&str, &str)]) -> Answer {
    let mut request = client.http.get(address);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    send(request).await
}

async fn written_at(site: &Site, seen_by: &Site, path: &str, content: &[u8]) -> Client {
    let there = site.user("alice").await;
    site.sees(&there, "/v1/spaces/climate").await;
    there.write(path, content).await.expect(201);
    let here = seen_by.user("alice").await;
    seen_by.sees(&here, &format!("/v1/entries{path}")).await;
    here
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_client_is_sent_to_the_site_that_has_the_bytes() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    let content = large(3_000_000);
    let alice = written_at(baltic, alps, "/climate/a b/ä", &content).await;
    let path = "/v1/data/climate/a%20b/%C3%A4";
    let plain = ordinary(&alice, &sites, Policy::none());

    let sent = follow(&plain, Method::GET, path, "follow").await;
    assert_eq!((sent.status.as_u16(), sent.text.len()), (307, 0), "{}", sent.text);
    let location = sent.header("location").to_owned();
    assert!(location.starts_with(&format!("{}{path}?", baltic.admin.url)), "{location}");
    assert_eq!(
        (sent.header("cache-control"), sent.header("referrer-policy")),
        ("private, no-store", "no-referrer")
    );
    assert_eq!(follow(&plain, Method::HEAD, path, "follow").await.status.as_u16(), 307);

    // The address alone is enough, and more than once.
    let relayed = send(plain.request(Method::HEAD, path).header("want-repr-digest", "sha-256=1")).await;
    for _ in 0..2 {
        let got = plain.http.get(&location).header("want-repr-digest", "sha-256=1").send().await.unwrap();
        assert_eq!(got.status().as_u16(), 200);
        for name in
            ["etag", "content-length", "percale-root", "percale-version", "last-modified", "repr-digest"]
        {
            let value = got.headers().get(name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!(value.to_str().unwrap(), relayed.header(name), "{name}");
        }
        assert_eq!(
            (&got.headers()["cache-control"], &got.headers()["referrer-policy"]),
            (&"private".parse().unwrap(), &"no-referrer".parse().unwrap())
        );
        assert!(got.bytes().await.unwrap() == content);
    }
    let part = plain.http.get(&location).header("range", "bytes=1048570-1048580").send().await.unwrap();
    assert_eq!(part.status().as_u16(), 206);
    assert!(part.bytes().await.unwrap() == content[1_048_570..=1_048_580]);
    let etag = relayed.header("etag");
    assert_eq!(at(&plain, &location, &[("if-none-match", etag)]).await.status.as_u16(), 304);

    // A client that follows by itself, and sends its fields along.
    let following = ordinary(&alice, &sites, Policy::limited(3));
    let got = following.request(Method::GET, path).header("percale-redirect", "follow").send().await.unwrap();
    assert!(got.url().as_str().starts_with(&baltic.admin.url));
    assert!(got.bytes().await.unwrap() == content);

    // Who does not say so, goes elsewhere, or asks where the bytes are, is not sent.
    for says in ["", "no", "follow; not=baltic", "follow; only=baltic"] {
        let got = plain.request(Method::GET, path).header("percale-redirect", says).send().await.unwrap();
        assert_eq!(got.status().as_u16(), 200, "{says}");
        assert!(got.bytes().await.unwrap() == content);
    }
    let there = ordinary(&baltic.user("alice").await, &sites, Policy::none());
    assert_eq!(follow(&there, Method::HEAD, path, "follow").await.status.as_u16(), 200);
    // What is refused at the first site is refused there.
    let stranger = Client { http: plain.http.clone(), ..alps.user("eve").await };
    follow(&stranger, Method::GET, path, "follow").await.expect_problem("not_found");
}

/// A good ticket of alps for alice at baltic, to be made worse.
async fn good_ticket(alps: &Site, baltic: &Site, path: &str) -> Ticket {
    let app = alps.running.as_ref().unwrap().app();
    let path = path.parse().unwrap();
    let open = app.catalog.open_object(&system_caller(), &path, None).await.unwrap();
    let now = Timestamp::now();
    Ticket {
        issuer_site: app.site.id,
        audience: baltic.running.as_ref().unwrap().app().site.id,
        user: user("alice", "alps"),
        space: open.space,
        path,
        version: Some(open.version),
        ranges: Vec::new(),
        op: TicketOp::Read,
        issued: now,
        expires: now.after(TICKET_LIFE),
        id: TokenId::new(),
    }
}

fn user(name: &str, site: &str) -> Caller {
    Caller::user(Identity { issuer: Issuer::site(site), name: name.into() })
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_micros(Timestamp::now().as_micros() - seconds * 1_000_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_what_it_names_and_nothing_else() {
    let sites = with_space().await;
    let [alps, baltic, coast] = &sites;
    let content = large(2_500_000);
    written_at(baltic, alps, "/climate/b", b"other").await;
    written_at(baltic, alps, "/climate/a", &content).await;
    let alps_own = alps.running.as_ref().unwrap().app().fabric.key();
    let alps_key = &alps_own.key;
    let good = good_ticket(alps, baltic, "/climate/a").await;
    let version = good.version.unwrap();
    let plain = Client { token: None, ..ordinary(&baltic.admin, &sites, Policy::none()) };
    let get = async |path: &str, text: &str| plain.get(&format!("/v1/data{path}ticket={text}")).await;
    let by = |ticket: &Ticket| ticket.sign(alps_key).unwrap();
    let got = plain.request(Method::GET, &format!("/v1/data/climate/a?ticket={}", by(&good)));
    assert!(got.send().await.unwrap().bytes().await.unwrap() == content);
    let field = plain.request(Method::HEAD, "/v1/data/climate/a").header("percale-ticket", by(&good));
    assert_eq!(send(field).await.status.as_u16(), 200);
    // Not both, and a token is not looked at.
    let both = plain.request(Method::GET, &format!("/v1/data/climate/a?ticket={}", by(&good)));
    send(both.header("percale-ticket", by(&good))).await.expect_problem_at("ticket_refused", "baltic");
    let with_token = plain.request(Method::HEAD, &format!("/v1/data/climate/a?ticket={}", by(&good)));
    assert_eq!(send(with_token.bearer_auth("junk")).await.status.as_u16(), 200);

    let refused = async |path: &str, text: &str, why: &str| {
        let answer = get(path, text).await;
        let problem = answer.expect_problem_at("ticket_refused", "baltic");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
        assert!(!answer.text.contains(text.rsplit('.').next().unwrap()), "it is repeated: {problem}");
    };
    let worse = |change: &dyn Fn(&mut Ticket)| {
        let mut ticket = good.clone();
        change(&mut ticket);
        by(&ticket)
    };
    let a = "/climate/a?";
    refused("/climate/b?", &by(&good), "/climate/a").await;
    refused(&format!("{a}version={}&", version.0 + 1), &by(&good), "the ticket is for version").await;
    let current = format!("{a}version={version}&");
    refused(&current, &worse(&|ticket| ticket.version = Some(VersionId(version.0 + 1))), "for version").await;
    refused(a, &worse(&|ticket| ticket.op = TicketOp::Write), "to write").await;
    refused(a, &worse(&|ticket| ticket.space = SpaceId::new()), "space").await;
    refused(a, &worse(&|ticket| ticket.ranges = vec![ByteRange::new(0, 100).unwrap()]), "bytes").await;
    let coast_id = coast.running.as_ref().unwrap().app().site.id;
    refused(a, &worse(&|ticket| ticket.audience = coast_id), "another site").await;
    refused(a, &worse(&|ticket| ticket.user = user("alice", "baltic")), "vouch").await;
    refused(a, &worse(&|ticket| ticket.issuer_site = coast_id), "").await;
    refused(a, "junk", "three parts").await;
    let mut altered = by(&good).into_bytes();
    let at = altered.len() - 100;
    altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
    refused(a, std::str::from_utf8(&altered).unwrap(), "").await;
    let part = worse(&|ticket| ticket.ranges = vec![ByteRange::new(0, 100).unwrap()]);
    let part = plain.request(Method::GET, &format!("/v1/data/climate/a?ticket={part}"));
    assert_eq!(send(part.header("range", "bytes=0-99")).await.status.as_u16(), 206);

    // That site serves what lies there; a client is never sent further.
    let there = alps.user("alice").await;
    there.write("/climate/near", "at alps").await.expect(201);
    let reader = baltic.user("alice").await;
    baltic.sees(&reader, "/v1/entries/climate/near").await;
    let near = by(&good_ticket(alps, baltic, "/climate/near").await);
    get("/climate/near?", &near).await.expect_problem_at("site_unavailable", "baltic");
    let further = plain.request(Method::GET, &format!("/v1/data/climate/near?ticket={near}"));
    let further = send(further.header("percale-redirect", "follow")).await;
    further.expect_problem_at("site_unavailable", "baltic");

    // Clocks may differ by half a minute.
    let barely = worse(&|ticket| (ticket.issued, ticket.expires) = (ago(100), ago(10)));
    assert_eq!(get(a, &barely).await.status.as_u16(), 200);
    let expired = worse(&|ticket| (ticket.issued, ticket.expires) = (ago(300), ago(60)));
    get(a, &expired).await.expect_problem_at("ticket_expired", "baltic");
    let most = i64::try_from(MAX_TICKET_LIFE.as_secs()).unwrap();
    assert!(Ticket { issued: ago(0), expires: ago(-most - 1), ..good.clone() }.sign(alps_key).is_err());

    // It opens content, and nothing else.
    for path in
        ["/v1/entries/climate/a", "/v1/trees/climate/a", "/v1/list/climate", "/v1/site", "/v1/grants/climate"]
    {
        let plain = plain.request(Method::GET, path).header("percale-ticket", by(&good));
        let answer = send(plain).await;
        assert!(path == "/v1/site" || answer.status.is_client_error(), "{path}: {}", answer.text);
    }
    let who = send(plain.request(Method::GET, "/v1/whoami").header("percale-ticket", by(&good))).await;
    assert!(who.status.as_u16() == 401 || who.json()["user"].is_null(), "{}", who.text);
    let write = plain.request(Method::PUT, "/v1/data/climate/a").header("percale-ticket", by(&good));
    send(write.header("if-match", "*").body("x")).await.expect_problem_at("unauthenticated", "baltic");

    // By a stranger, who says that it is alps, or itself.
    let liar = Liar::new("delta");
    refused(a, &good.sign(&liar.key).unwrap(), "no key").await;
    let own = Ticket { issuer_site: liar.id, user: user("eve", "delta"), ..good };
    get(a, &own.sign(&liar.key).unwrap()).await.expect_problem_at("site_refused", "baltic");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removed_site_signed_opens_nothing() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    written_at(baltic, alps, "/climate/a", b"one").await;
    let liar = Liar::new("delta");
    liar.join(alps).await;
    let grant = json!({"subject": "user:eve@site:delta", "permission": "read"});
    alps.admin.put("/v1/grants/climate", grant).await.expect(200);
    let plain = Client { token: None, ..baltic.admin.clone() };
    let good = good_ticket(alps, baltic, "/climate/a").await;
    let good = Ticket { issuer_site: liar.id, user: user("eve", "delta"), ..good };
    let get =
        async || plain.get(&format!("/v1/data/climate/a?ticket={}", good.sign(&liar.key).unwrap())).await;
    eventually("baltic takes the ticket", async || (get().await.text == "one").then_some(())).await;
    baltic.admin.delete("/v1/sites/delta").await.expect(204);
    get().await.expect_problem_at("site_refused", "baltic");

    // Nobody is sent to a site that was removed; there is no copy to be had then.
    let here = ordinary(&alps.user("alice").await, &sites, Policy::none());
    let sent = follow(&here, Method::GET, "/v1/data/climate/a", "follow").await;
    assert_eq!(sent.status.as_u16(), 307);
    alps.admin.delete("/v1/sites/baltic").await.expect(204);
    let answer = follow(&here, Method::GET, "/v1/data/climate/a", "follow").await;
    assert!(answer.status.is_client_error() && answer.header("location").is_empty(), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_read_there_is_refused_in_spite_of_a_ticket() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    written_at(baltic, alps, "/climate/a", b"one").await;
    let grant = json!({"subject": "user:bob", "permission": "read"});
    alps.admin.put("/v1/grants/climate/a", grant).await.expect(200);
    let bob = ordinary(&alps.user("bob").await, &sites, Policy::none());
    let location =
        follow(&bob, Method::GET, "/v1/data/climate/a", "follow").await.header("location").to_owned();
    // It waits until it has seen the grant, on which the first site relied.
    assert_eq!(at(&bob, &location, &[]).await.text, "one");
    alps.admin.delete("/v1/grants/climate/a?subject=user:bob").await.expect(204);
    eventually("baltic refuses", async || {
        let answer = at(&bob, &location, &[]).await;
        (answer.json()["code"] == "not_found").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_sent_to_a_site_that_only_dials_out() {
    let outgoing = Site::with("coast", |config| config.federation.outgoing_only = true);
    let (alps, coast) = tokio::join!(Site::start("alps"), outgoing);
    coast.join(&alps.invite().await).await;
    for site in [&alps, &coast] {
        site.reaches(&["alps", "coast"]).await;
    }
    alps.admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice"})).await.expect(201);
    let grant = json!({"subject": "user:alice@site:coast", "permission": "write"});
    alps.admin.put("/v1/grants/climate", grant).await.expect(200);
    let alice = written_at(&coast, &alps, "/climate/a", b"deep").await;
    let answer = follow(&alice, Method::GET, "/v1/data/climate/a", "follow").await;
    assert_eq!((answer.status.as_u16(), &*answer.text), (200, "deep"));
    let mut read = own(&alps, &alice, |_| {}).read(&"/climate/a".parse().unwrap(), None).await.unwrap();
    assert_eq!(&read.next().await.unwrap().unwrap()[..], b"deep");
}

/// A relay of TCP before a site: counts what the site sends, and turns newcomers away when told.
struct Gate {
    url: String,
    sent: Arc<AtomicU64>,
    is_shut: Arc<AtomicBool>,
    turned_away: Arc<AtomicU64>,
}

impl Gate {
    async fn bind() -> (std::net::TcpListener, String) {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let url = format!("https://{}", tcp.local_addr().unwrap());
        (tcp, url)
    }

    fn open(tcp: std::net::TcpListener, to: std::net::SocketAddr) -> Self {
        let tcp = tokio::net::TcpListener::from_std(tcp).unwrap();
        let url = format!("https://{}", tcp.local_addr().unwrap());
        let gate = Self { url, sent: Arc::default(), is_shut: Arc::default(), turned_away: Arc::default() };
        let (sent, is_shut, away) = (gate.sent.clone(), gate.is_shut.clone(), gate.turned_away.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = tcp.accept().await {
                if is_shut.load(Relaxed) {
                    away.fetch_add(1, Relaxed);
                    continue;
                }
                let sent = sent.clone();
                tokio::spawn(async move {
                    let site = tokio::net::TcpStream::connect(to).await.unwrap();
                    let ((mut from_site, mut to_site), (mut from_client, mut to_client)) =
                        (site.into_split(), client.into_split());
                    tokio::spawn(async move {
                        let _ = tokio::io::copy(&mut from_client, &mut to_site).await;
                        let _ = to_site.shutdown().await;
                    });
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) =
                        tokio::io::AsyncReadExt::read(&mut from_site, &mut buffer).await
                    {
                        sent.fetch_add(read as u64, Relaxed);
                        if to_client.write_all(&buffer[..read]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        gate
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_reads_straight_from_the_site_that_has_the_bytes() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    let there = baltic.user("alice").await;
    baltic.sees(&there, "/v1/spaces/climate").await;
    write_small(&there, "run7", 40).await;
    there.write("/climate/run7/middle", large(3_000_000)).await.expect(201);
    there.write("/climate/run7/large", large(20_000_000)).await.expect(201);
    let alice = alps.user("alice").await;
    alps.sees(&alice, "/v1/entries/climate/run7/large").await;
    alice.write("/climate/run7/near", large(100_000)).await.expect(201);
    let (tcp, _) = Gate::bind().await;
    let gate = Gate::open(tcp, alps.running.as_ref().unwrap().address());
    let alice = Client { url: gate.url.clone(), ..alice };
    let folder = tempfile::tempdir().unwrap();
    let run7 = "/climate/run7".parse().unwrap();

    let get = async |client: &Own, name: &str| {
        let local = folder.path().join(name);
        let before = gate.sent.load(Relaxed);
        let report = client.get_tree(&run7, &local, &GetOptions::default()).await.unwrap();
        assert_eq!((report.done, report.failed), (43, 0), "{report:?}");
        for (file, size) in [("large", 20_000_000), ("middle", 3_000_000), ("near", 100_000)] {
            assert!(std::fs::read(local.join(file)).unwrap() == large(size), "{name}/{file}");
        }
        gate.sent.load(Relaxed) - before
    };
    let through = get(&own(alps, &alice, |options| options.follow = false), "relayed").await;
    assert!(through > 23_000_000, "{through}");
    // The last ones over two streams together.
    let straight = get(&own(alps, &alice, |options| options.streams = Some(2)), "straight").await;
    assert!(straight < 1_000_000, "{straight} bytes came through alps");

    // As a stream, from the middle.
    let client = own(alps, &alice, |_| {});
    let before = gate.sent.load(Relaxed);
    let range = ByteRange::new(1_500_000, 19_000_000);
    let mut read = client.read(&"/climate/run7/large".parse().unwrap(), range).await.unwrap();
    let mut got = Vec::new();
    while let Some(bytes) = read.next().await.unwrap() {
        got.extend_from_slice(&bytes);
    }
    assert!(got == large(20_000_000)[1_500_000..19_000_000]);
    assert!(gate.sent.load(Relaxed) - before < 1_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_no_more_than_the_token_with_which_it_was_asked_for() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    for path in ["a/1", "a/2", "b/1", "b/2", "c/1"] {
        written_at(baltic, alps, &format!("/climate/{path}"), b"12345").await;
    }
    let scopes = json!({"subject": "user:alice", "scopes": ["read:/climate/a", "read:/climate/b"]});
    let issued = alps.admin.post("/v1/tokens", scopes).await.expect(201);
    let limited = alps.admin.as_token(issued["secret"].as_str().unwrap());
    let ask = async |client: &Client, paths: &[&str], share: Option<&str>| {
        let items: Vec<_> = paths.iter().map(|path| json!({"path": format!("/climate/{path}")})).collect();
        let request = client.request(Method::POST, "/v1/frames/pull").header("percale-redirect", "follow");
        // Also where several streams bring it together.
        let request = share.into_iter().fold(request, |request, id| request.header("percale-share", id));
        let body = request.json(&json!({"items": items})).send().await.unwrap().bytes().await.unwrap();
        let mut decoder = Decoder::new();
        decoder.feed(body);
        let (mut places, mut of, mut failed) = (Vec::<Place>::new(), Vec::new(), 0);
        while let Some(frame) = decoder.next().unwrap() {
            match frame {
                Frame::Away { place, info, .. } => {
                    if !info.is_empty() {
                        places.push(serde_json::from_slice(&info).unwrap());
                    }
                    of.push(place);
                }
                Frame::Fail { .. } => failed += 1,
                Frame::Data(_) => panic!("bytes came through"),
                _ => {}
            }
        }
        decoder.finish().unwrap();
        (places, of, failed)
    };
    let mut named = Vec::new();
    for share in [None, Some("one-of-the-streams")] {
        let (places, of, failed) = ask(&limited, &["a/1", "b/1", "a/2", "c/1", "b/2"], share).await;
        assert_eq!((places.len(), of, failed), (2, vec![0, 1, 0, 1], 1));
        named = places;
    }
    let places = async |client: &Client, paths: &[&str]| ask(client, paths, None).await;
    let unlimited = alps.user("alice").await;
    let (all, of, failed) = places(&unlimited, &["a/1", "b/1", "a/2", "c/1", "b/2"]).await;
    assert_eq!((all.len(), of, failed), (1, vec![0; 5], 0));

    let plain = Client { token: None, ..baltic.admin.clone() };
    let opens = async |place: &Place, path: &str| {
        let field = [("percale-ticket", &*place.ticket)];
        at(&plain, &format!("{}/v1/data/climate/{path}", place.url), &field).await.status.as_u16()
    };
    assert_eq!((opens(&named[0], "a/1").await, opens(&named[0], "a/2").await), (200, 200));
    assert_eq!((opens(&named[0], "b/1").await, opens(&named[1], "b/1").await), (403, 200));
    assert_eq!((opens(&named[0], "c/1").await, opens(&all[0], "c/1").await), (403, 200));
    // For one item, it is for that version of it.
    let (one, ..) = places(&unlimited, &["a/1"]).await;
    assert_eq!((opens(&one[0], "a/1").await, opens(&one[0], "a/2").await), (200, 403));
    // By frames, too: what the ticket is not for fails alone.
    let pull = plain.request(Method::POST, "/v1/frames/pull").header("percale-ticket", &one[0].ticket);
    let items = json!({"items": [{"path": "/climate/a/1"}, {"path": "/climate/a/2"}]});
    let body = pull.json(&items).send().await.unwrap().bytes().await.unwrap();
    let mut decoder = Decoder::new();
    decoder.feed(body);
    let mut came = Vec::new();
    while let Some(frame) = decoder.next().unwrap() {
        match frame {
            Frame::Data(data) => came.push(Ok(data.item)),
            Frame::Fail { item, problem } => {
                assert!(String::from_utf8_lossy(&problem).contains("ticket_refused"));
                came.push(Err(item));
            }
            _ => {}
        }
    }
    assert_eq!(came, [Ok(0), Err(1)]);
}

/// A file at baltic and, by a task, at coast, seen by alps.
async fn two_copies(sites: &[Site; 3], path: &str, content: &[u8]) -> Client {
    let [alps, baltic, _] = sites;
    let alice = written_at(baltic, alps, path, content).await;
    let id = submit(&alice, json!({"kind": "replicate", "path": path, "to": "coast"})).await;
    assert_eq!(ended(&alice, &id).await["state"], "succeeded");
    good_at(&alice, path, &["baltic", "coast"]).await;
    alice
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_at_the_other_site_is_made_up_for() {
    let sites = with_space().await;
    let alps = &sites[0];
    for (path, size) in [("/climate/small", 300_000), ("/climate/large", 12_000_000)] {
        let content = large(size);
        let alice = two_copies(&sites, path, &content).await;
        // The one to which alps sends.
        let plain = ordinary(&alice, &sites, Policy::none());
        let sent = follow(&plain, Method::GET, &format!("/v1/data{path}"), "follow").await;
        let chosen = sites.iter().find(|site| sent.header("location").starts_with(&site.admin.url)).unwrap();
        let replicas =
            async || alice.get(&format!("/v1/entries{path}")).await.expect(200)["replicas"].clone();
        let is_there = |replica: &&serde_json::Value| replica["site"] == chosen.name;
        let found = replicas().await;
        let key =
            found.as_array().unwrap().iter().find(is_there).unwrap()["key"].as_str().unwrap().to_owned();
        let file = chosen.directory.path().join("disk").join(key);
        let file = std::fs::File::options().write(true).open(file).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"X", size as u64 - 100_000).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("got");
        let client = own(alps, &alice, |_| {});
        let path = path.parse().unwrap();
        let report = client.get_file(&path, &local, &GetOptions::default()).await.unwrap();
        assert_eq!(report.failed, 0, "{report:?}");
        assert!(std::fs::read(&local).unwrap() == content);
        eventually("the damage is known", async || {
            let found = replicas().await;
            let state = &found.as_array().unwrap().iter().find(is_there).unwrap()["state"];
            (state == "suspect").then_some(())
        })
        .await;
        let mut read = client.read(&path, None).await.unwrap();
        let mut got = Vec::new();
        while let Some(bytes) = read.next().await.unwrap() {
            got.extend_from_slice(&bytes);
        }
        assert!(got == content);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_ahead_comes_from_where_it_is() {
    let sites = with_space().await;
    let [alps, baltic, _coast] = &sites;
    let content = large(9_000_000);
    let alice = written_at(baltic, alps, "/climate/a", &content).await;
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("got");
    let client = own(alps, &alice, |_| {});
    let path = "/climate/a".parse().unwrap();
    let ahead = client.ask_ahead(&path, &local);
    assert!(ahead.is_some());
    let entry = client.resolve(&path).await.unwrap();
    let report = client.get_found(entry, ahead, &local, &GetOptions::default()).await.unwrap();
    assert_eq!((report.done, report.failed), (1, 0), "{report:?}");
    assert!(std::fs::read(&local).unwrap() == content);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_away_is_made_up_for() {
    let mut sites = with_space().await;
    let content = large(9_000_000);
    let alice = two_copies(&sites, "/climate/a", &content).await;
    written_at(&sites[1], &sites[0], "/climate/only", b"at baltic").await;
    let plain = ordinary(&alice, &sites, Policy::none());
    let sent = follow(&plain, Method::HEAD, "/v1/data/climate/only", "follow").await;
    assert_eq!(sent.status.as_u16(), 307);
    sites[1].stop().await;
    let [alps, baltic, _coast] = &sites;
    let client = own(alps, &alice, |_| {});
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("got");
        let path = "/climate/a".parse().unwrap();
        let report = client.get_file(&path, &local, &GetOptions::default()).await.unwrap();
        assert_eq!(report.failed, 0, "{report:?}");
        assert!(std::fs::read(&local).unwrap() == content);
    }
    // Once the first site knows that the other one fails, it sends nobody there.
    let read = alice.request(Method::GET, "/v1/data/climate/only").send().await;
    assert!(read.is_err() || read.unwrap().bytes().await.is_err(), "baltic is away");
    assert_eq!(follow(&plain, Method::HEAD, "/v1/data/climate/only", "follow").await.status.as_u16(), 200);
    assert!(baltic.running.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_client_cannot_reach_comes_through_the_site_that_it_asked() {
    // baltic is reached through a gate that lets nobody in any more at some time.
    let (tcp, url) = Gate::bind().await;
    let gated = Site::with("baltic", |config| config.federation.urls = vec![url]);
    let (alps, baltic) = tokio::join!(Site::start("alps"), gated);
    let gate = Gate::open(tcp, baltic.running.as_ref().unwrap().address());
    baltic.join(&alps.invite().await).await;
    for site in [&alps, &baltic] {
        site.reaches(&["alps", "baltic"]).await;
    }
    alps.admin.post("/v1/spaces", json!({"name": "climate", "owner": "user:alice"})).await.expect(201);
    let grant = json!({"subject": "user:alice@site:baltic", "permission": "write"});
    alps.admin.put("/v1/grants/climate", grant).await.expect(200);
    let content = large(700_000);
    let alice = written_at(&baltic, &alps, "/climate/a", &content).await;
    let relayed = async || assert!(bytes(&alice, "/v1/data/climate/a").await == content);
    // So that alps has connections in hand.
    tokio::join!(relayed(), relayed(), relayed(), relayed());
    gate.is_shut.store(true, Relaxed);
    let client = own(&alps, &alice, |_| {});
    for _ in 0..3 {
        let mut read = client.read(&"/climate/a".parse().unwrap(), None).await.unwrap();
        assert!(read.next().await.unwrap().unwrap() == content);
        assert!(read.next().await.unwrap().is_none());
    }
    assert!(gate.turned_away.load(Relaxed) > 0, "the client tried");
}

/// Everything that is logged, by all libraries and on all levels.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_metric_or_error_has_a_ticket() {
    let log = Log::default();
    let writer = log.clone();
    let started = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .try_init();
    // Without a process of its own, another test may have been first; then there is nothing to look at.
    if started.is_err() {
        return;
    }
    let sites = with_space().await;
    let [alps, baltic, coast] = &sites;
    let alice = written_at(baltic, alps, "/climate/a", &large(2_000_000)).await;
    let plain = ordinary(&alice, &sites, Policy::none());
    let mut tickets = Vec::new();
    for path in ["/v1/data/climate/a"] {
        let sent = follow(&plain, Method::GET, path, "follow").await;
        let location = sent.header("location").to_owned();
        let ticket = location.split("ticket=").nth(1).unwrap().to_owned();
        // Good, at another site, for another object, altered, and where no ticket is looked for.
        assert_eq!(plain.http.get(&location).send().await.unwrap().status().as_u16(), 200);
        let elsewhere = location.replace(&baltic.admin.url, &coast.admin.url);
        assert_eq!(plain.http.get(&elsewhere).send().await.unwrap().status().as_u16(), 403);
        for other in
            ["/v1/data/climate/b?", "/v1/data/climate/a?junk=1&", "/v1/entries/climate/a?", "/nowhere?"]
        {
            for end in ["", "x"] {
                let address = format!("{}{other}ticket={ticket}{end}", baltic.admin.url);
                let answer = send(plain.http.get(&address)).await;
                assert!(answer.status.is_client_error(), "{other} {}", answer.text);
                assert!(!answer.text.contains(&ticket[ticket.len() - 40..]), "{}", answer.text);
            }
        }
        tickets.push(ticket);
    }
    let client = own(alps, &alice, |_| {});
    let mut read = client.read(&"/climate/a".parse().unwrap(), None).await.unwrap();
    while read.next().await.unwrap().is_some() {}
    let metrics = alice.get("/metrics").await.text;
    assert!(metrics.contains("percale_redirects_total"), "{metrics}");
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(
        logged.contains("request answered") && logged.contains("ticket_refused"),
        "the log was not taken"
    );
    for ticket in tickets {
        let (claims, signature) = ticket.rsplit_once('.').unwrap();
        for part in [claims, &claims[claims.len() - 60..], signature] {
            let line = logged.lines().find(|line| line.contains(part));
            assert!(line.is_none() && !metrics.contains(part), "a ticket is logged: {line:?}");
        }
    }
    // Of all others the head and the claims begin alike.
    let head = logged.lines().find(|line| line.contains("InBlcmNhbGUtdGlja2V0K2p3dC"));
    assert!(head.is_none(), "a ticket is logged: {head:?}");
}
