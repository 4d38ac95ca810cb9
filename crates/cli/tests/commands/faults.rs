//! Transfers over connections that break again and again, and a site that goes away in the middle.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use percale_testkit::data::content;

use crate::lab::{Lab, Ran, finished, ran, tree};

/// Hands on what comes for a site, and after some bytes breaks the connection that they came over, again and again.
struct Proxy {
    address: SocketAddr,
    broken: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
}

impl Proxy {
    /// There is a break each `least` bytes and up to four times as many, on however many connections they travel: how often
    /// it breaks follows from the size of what is moved alone.
    fn start(site: SocketAddr, least: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (broken, stopped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let proxy = Self { address, broken: broken.clone(), stopped: stopped.clone() };
        std::thread::spawn(move || {
            // Bytes until the next break, and the number of those before it.
            let next = Arc::new(Mutex::new((least, 0_u64)));
            for client in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(site)) else { continue };
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let (next, broken) = (next.clone(), broken.clone());
                    std::thread::spawn(move || {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(len @ 1..) = from.read(&mut buffer) {
                            let breaks = {
                                let (left, number) = &mut *next.lock().unwrap();
                                let breaks = *left <= len as u64;
                                if breaks {
                                    // A fixed sequence, not a clock: the test is the same each time.
                                    *number += 1;
                                    *left = least + least * (*number * 7 % 4);
                                } else {
                                    *left -= len as u64;
                                }
                                breaks
                            };
                            if breaks {
                                broken.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            if to.write_all(&buffer[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        proxy
    }

    fn run(&self, lab: &Lab, line: &str) -> Ran {
        let mut command = lab.command(line.split_whitespace());
        ran(command.env("PERCALE_URL", format!("https://{}", self.address)))
    }

    fn broken(&self) -> u64 {
        self.broken.swap(0, Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

fn address_of(lab: &Lab) -> SocketAddr {
    lab.site.url().trim_start_matches("https://").parse().unwrap()
}

#[test]
fn a_large_file_arrives_over_connections_that_break() {
    let lab = Lab::new();
    content::write_file(&lab.path("big"), 1, 96 << 20).unwrap();
    let proxy = Proxy::start(address_of(&lab), 7 << 20);
    proxy.run(&lab, "put big percale:/lab/big").ok();
    assert!(proxy.broken() >= 3);
    lab.line("check big percale:/lab/big").ok();
    proxy.run(&lab, "get percale:/lab/big back").ok();
    assert!(proxy.broken() >= 3);
    lab.line("check back percale:/lab/big").ok();
    let whole = proxy.run(&lab, "check --deep percale:/lab").ok();
    assert!(whole.err.contains("1 good, 0 bad"), "{}", whole.err);

    let cat = lab
        .command(["cat", "percale:/lab/big"])
        .env("PERCALE_URL", format!("https://{}", proxy.address))
        .output()
        .unwrap();
    assert_eq!(cat.status.code(), Some(0), "{}", String::from_utf8_lossy(&cat.stderr));
    assert!(cat.stdout == std::fs::read(lab.path("big")).unwrap(), "the stream has other bytes");
    assert!(proxy.broken() >= 3);
}

#[test]
fn many_small_files_arrive_over_connections_that_break() {
    let lab = Lab::new();
    for number in 0..1500_usize {
        lab.write(&format!("d/{}/{number}", number % 7), &content::bytes(number as u64, 6000 + number));
    }
    let proxy = Proxy::start(address_of(&lab), 1 << 20);
    proxy.run(&lab, "put -r d percale:/lab/").ok();
    assert!(proxy.broken() >= 2);
    lab.line("check d percale:/lab/d").ok();
    proxy.run(&lab, "get -r percale:/lab/d back").ok();
    assert!(proxy.broken() >= 2);
    assert_eq!(tree(&lab.path("d")), tree(&lab.path("back/d")));
}

#[test]
fn a_transfer_outlives_a_crash_of_the_site() {
    let mut lab = Lab::new();
    content::write_file(&lab.path("big"), 3, 512 << 20).unwrap();
    let put = lab.start(["put", "big", "percale:/lab/big"]);
    lab.wait_for_staged(64);
    lab.site.kill();
    lab.site.restart();
    finished(put.wait_with_output().unwrap()).ok();
    lab.line("check big percale:/lab/big").ok();
}

#[test]
fn a_site_that_is_not_there_is_told_soon() {
    let lab = Lab::new();
    let began = std::time::Instant::now();
    let mut command = lab.command(["ls", "--json"]);
    let gone = ran(command.env("PERCALE_URL", "https://127.0.0.1:1")).code(5);
    assert_eq!(gone.error()["code"], "site_unavailable");
    assert!(began.elapsed() < Duration::from_secs(15));
}
