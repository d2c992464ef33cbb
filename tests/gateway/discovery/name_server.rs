//! A name server that says what a script says, over UDP on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::UdpSocket;

/// What it says to every question of a type.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// A records; no others.
    Addresses(Vec<Ipv4Addr>),
    /// SRV records: priority, port, host; every host is at 127.0.0.1.
    Services(Vec<(u16, u16, &'static str)>),
    /// The name does not exist.
    NoSuchName,
    /// It cannot say.
    Failure,
}

pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    says: Arc<Mutex<(Says, u32)>>,
    questions: Arc<Mutex<usize>>,
}

impl NameServer {
    pub(crate) async fn start(says: Says, ttl: u32) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let (says, questions) = (Arc::new(Mutex::new((says, ttl))), Arc::<Mutex<usize>>::default());
        let (told, asked) = (Arc::clone(&says), Arc::clone(&questions));
        tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                *asked.lock() += 1;
                let answer = answer(&query[..length], &told.lock().clone());
                let _ = socket.send_to(&answer, from).await;
            }
        });
        Self { address, says, questions }
    }

    pub(crate) fn says(&self, says: Says) {
        self.says.lock().0 = says;
    }

    pub(crate) fn questions(&self) -> usize {
        *self.questions.lock()
    }
}

/// RFC 1035 §4.1: header, the question as it came, answers that point to its name.
fn answer(query: &[u8], (says, ttl): &(Says, u32)) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let question = &query[12..name_end + 4];
    let kind = u16::from_be_bytes([query[name_end], query[name_end + 1]]);
    let (code, data): (u8, Vec<Vec<u8>>) = match says {
        Says::Addresses(all) if kind == A => (0, all.iter().map(|one| one.octets().to_vec()).collect()),
        Says::Services(all) if kind == SRV => (0, all.iter().map(service).collect()),
        Says::Services(_) if kind == A => (0, vec![vec![127, 0, 0, 1]]),
        Says::NoSuchName => (3, Vec::new()),
        Says::Failure => (2, Vec::new()),
        _ => (0, Vec::new()),
    };
    let mut answer =
        vec![query[0], query[1], 0x85, 0x80 | code, 0, 1, 0, u8::try_from(data.len()).unwrap(), 0, 0, 0, 0];
    answer.extend_from_slice(question);
    for data in data {
        answer.extend_from_slice(&[0xc0, 12]);
        answer.extend_from_slice(&kind.to_be_bytes());
        answer.extend_from_slice(&[0, 1]);
        answer.extend_from_slice(&ttl.to_be_bytes());
        answer.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        answer.extend_from_slice(&data);
    }
    answer
}

fn service((priority, port, host): &(u16, u16, &str)) -> Vec<u8> {
    let mut data = [priority.to_be_bytes(), [0, 0], port.to_be_bytes()].concat();
    for label in host.split('.') {
        data.push(u8::try_from(label.len()).unwrap());
        data.extend_from_slice(label.as_bytes());
    }
    data.push(0);
    data
}

const A: u16 = 1;
const SRV: u16 = 33;
