//! Our own generator of DNS queries: it sends and receives by the batch, so that it costs less than what it asks.
//!
//! Some sockets with a window of queries each: for every answer the next query leaves. Or so many queries a second, for
//! looking at how long an answer takes when the server has time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use platform::batch::{DATAGRAMS, Incoming, Outgoing, make_blocking};
use platform::socket::udp_sockets;

use crate::Failure;
use crate::names::Question;
use crate::paired::Sample;
use crate::server::Server;

/// How many sockets ask.
const SOCKETS: usize = 4;

/// Queries that wait for an answer, of all sockets together.
const WAITING: usize = SOCKETS * DATAGRAMS;

/// Most of one socket: the lower part of an identifier says which.
const WINDOW_MAX: usize = 1 << 6;

/// Longest query and answer.
const ROOM: usize = 1280;

/// After this an answer does not come any more: the slowest take some ms, and a full buffer is the usual reason.
const LOST: Duration = Duration::from_millis(100);

/// Turns after which is looked for lost ones: the window would shrink with each.
const LOOK_AFTER: usize = 32;

/// What became of the queries.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answered: u64,
    pub(crate) lost: u64,
    /// Answered with something else than the truth.
    pub(crate) wrong: u64,
    /// Times until the answer, in ns.
    pub(crate) latencies: Vec<u32>,
    pub(crate) elapsed: Duration,
}

impl Tally {
    /// Which time in µs so many of 1,000 answers took at most.
    pub(crate) fn permille(&mut self, permille: usize) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let (_, at, _) = match self.latencies.len() {
            0 => return f64::NAN,
            length => self.latencies.select_nth_unstable((length * permille / 1000).min(last)),
        };
        f64::from(*at) / 1e3
    }

    /// How many took longer.
    pub(crate) fn later_than(&self, limit: Duration) -> usize {
        self.latencies.iter().filter(|took| u128::from(**took) > limit.as_nanos()).count()
    }

    pub(crate) fn sample(&mut self, cpu: Duration) -> Sample {
        let mut sample = Sample::new(cpu, self.answered, self.elapsed);
        sample.latency = Some((self.permille(500), self.permille(990)));
        if self.wrong > 0 {
            sample.trouble = format!("{} wrong answers", self.wrong);
        } else if self.lost > 0 {
            sample.trouble = format!("lost {}", self.lost);
        }
        sample
    }

    fn count(&mut self, question: &Question, reply: &[u8], check: bool, took: Duration) {
        self.answered += 1;
        self.wrong += u64::from(check && !question.is_answered_by(reply));
        self.latencies.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }
}

/// Who asks what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub(crate) questions: &'a [Question],
    /// One socket each.
    pub(crate) from: &'a [Ipv4Addr],
    /// Whether answers have to be right; an echo has none.
    pub(crate) check: bool,
}

/// The usual senders.
pub(crate) const FROM: [Ipv4Addr; SOCKETS] = [Ipv4Addr::LOCALHOST; SOCKETS];

/// A sender for each query that waits, as containers are: each asks one thing at a time.
pub(crate) const FROM_EACH: [Ipv4Addr; WAITING] = [Ipv4Addr::LOCALHOST; WAITING];

impl Load<'_> {
    /// Keeps all windows full for some time; the processor time of the server for it is that of all it answered.
    pub(crate) fn saturate(&self, server: &Server, duration: Duration) -> Result<Sample, Failure> {
        let mut clients = self.clients(server.address)?;
        let before = server.cpu()?;
        let mut tally = Tally::default();
        let start = Instant::now();
        let mut next = 0;
        for client in &mut clients {
            client.begin(self, &mut next);
        }
        let end = start + duration;
        let mut turn = 0_usize;
        loop {
            let now = Instant::now();
            let more = now < end;
            if !more && clients.iter().all(Client::is_idle) {
                break;
            }
            if now > end + LOST {
                tally.lost += clients.iter().map(Client::waiting).sum::<u64>();
                break;
            }
            turn += 1;
            for client in &mut clients {
                client.turn(self, &mut next, &mut tally, more)?;
                if turn.is_multiple_of(LOOK_AFTER) && more {
                    client.ask_again(self, &mut next, &mut tally);
                }
            }
        }
        tally.elapsed = start.elapsed();
        let cpu = server.cpu()?.saturating_sub(before);
        Ok(tally.sample(cpu))
    }

    /// Sends so many queries a second, evenly, without ever sleeping itself.
    pub(crate) fn pace(&self, server: &Server, rate: u32, duration: Duration) -> Result<(Sample, Tally), Failure> {
        let sockets = self.sockets(server.address)?;
        let (mut incoming, mut outgoing) = (Incoming::new(ROOM), Outgoing::new(ROOM));
        let mut waiting: Vec<Option<(Instant, usize)>> = vec![None; 1 << 16];
        let before = server.cpu()?;
        let mut tally = Tally::default();
        let start = Instant::now();
        let gap = Duration::from_secs(1) / rate;
        let count = u32::try_from(duration.as_nanos() / gap.as_nanos())?;
        let mut sent = 0;
        loop {
            let now = Instant::now();
            if sent < count {
                let due = start + gap * sent;
                if now >= due {
                    let index = sent as usize % self.questions.len();
                    let id = u16::try_from(sent % (1 << 16))?;
                    if waiting[usize::from(id)].replace((due, index)).is_some() {
                        tally.lost += 1;
                    }
                    put(&mut outgoing, &self.questions[index], id);
                    outgoing.send(&sockets[sent as usize % sockets.len()]);
                    sent += 1;
                }
            } else if tally.answered + tally.lost >= u64::from(count) || now > start + duration + LOST {
                break;
            }
            for socket in &sockets {
                incoming.receive_now(socket)?;
                let now = Instant::now();
                for reply in incoming.iter() {
                    let Some(id) = reply.bytes.first_chunk().copied().map(u16::from_be_bytes) else { continue };
                    if let Some((due, index)) = waiting[usize::from(id)].take() {
                        tally.count(&self.questions[index], reply.bytes, self.check, now - due);
                    }
                }
            }
        }
        tally.lost += waiting.iter().flatten().count() as u64;
        tally.elapsed = start.elapsed();
        let cpu = server.cpu()?.saturating_sub(before);
        let sample = tally.sample(cpu);
        Ok((sample, tally))
    }

    fn sockets(&self, server: SocketAddr) -> Result<Vec<UdpSocket>, Failure> {
        let connected = self.from.iter().map(|from| {
            let socket = udp_sockets(SocketAddr::new(IpAddr::V4(*from), 0), 1)?.remove(0);
            socket.connect(server)?;
            Ok(socket)
        });
        connected.collect()
    }

    fn clients(&self, server: SocketAddr) -> Result<Vec<Client>, Failure> {
        let window = (WAITING / self.from.len()).clamp(1, WINDOW_MAX);
        let sockets = self.sockets(server)?.into_iter().map(|socket| {
            make_blocking(&socket)?;
            Ok(Client {
                socket,
                incoming: Incoming::new(ROOM),
                outgoing: Outgoing::new(ROOM),
                window: vec![Place { generation: 0, asked: None }; window],
            })
        });
        sockets.collect()
    }
}

/// A place in a window. Its number is the lower part of the query's identifier, its generation the upper one.
#[derive(Clone, Debug)]
struct Place {
    generation: u16,
    asked: Option<(Instant, usize)>,
}

/// A socket with its window.
struct Client {
    socket: UdpSocket,
    incoming: Incoming,
    outgoing: Outgoing,
    window: Vec<Place>,
}

impl Client {
    fn begin(&mut self, load: &Load<'_>, next: &mut usize) {
        let now = Instant::now();
        for place in 0..self.window.len() {
            self.ask(load, place, next, now);
        }
        self.outgoing.send(&self.socket);
    }

    /// Takes answers, and asks as many questions anew when there is to be `more`.
    fn turn(&mut self, load: &Load<'_>, next: &mut usize, tally: &mut Tally, more: bool) -> Result<(), Failure> {
        if self.is_idle() {
            return Ok(());
        }
        // The reply ends the wait; when all are lost, time does. Meanwhile those for the other sockets pile up, and are
        // then taken together.
        match self.incoming.receive(&self.socket) {
            Ok(_) => {}
            Err(error) if platform::socket::is_transient(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        let incoming = std::mem::replace(&mut self.incoming, Incoming::new(0));
        for reply in incoming.iter() {
            let Some(id) = reply.bytes.first_chunk().copied().map(u16::from_be_bytes) else { continue };
            let place = usize::from(id) % WINDOW_MAX;
            let asked = self.window.get(place).map(|place| usize::from(place.generation));
            if asked != Some(usize::from(id) / WINDOW_MAX) {
                continue;
            }
            let Some((asked, question)) = self.window[place].asked.take() else { continue };
            tally.count(&load.questions[question], reply.bytes, load.check, now - asked);
            if more {
                self.ask(load, place, next, now);
            }
        }
        self.incoming = incoming;
        self.outgoing.send(&self.socket);
        Ok(())
    }

    /// Gives up what is too late and asks something else in its place.
    fn ask_again(&mut self, load: &Load<'_>, next: &mut usize, tally: &mut Tally) {
        let now = Instant::now();
        for place in 0..self.window.len() {
            if self.window[place].asked.is_some_and(|(asked, _)| now - asked > LOST) {
                tally.lost += 1;
                self.ask(load, place, next, now);
            }
        }
        self.outgoing.send(&self.socket);
    }

    fn ask(&mut self, load: &Load<'_>, place: usize, next: &mut usize, now: Instant) {
        let question = *next % load.questions.len();
        *next += 1;
        let here = &mut self.window[place];
        here.generation = (here.generation + 1) % (1 << 10);
        here.asked = Some((now, question));
        let id = here.generation << 6 | u16::try_from(place).unwrap_or_default();
        put(&mut self.outgoing, &load.questions[question], id);
    }

    fn is_idle(&self) -> bool {
        self.waiting() == 0
    }

    fn waiting(&self) -> u64 {
        self.window.iter().filter(|place| place.asked.is_some()).count() as u64
    }
}

fn put(outgoing: &mut Outgoing, question: &Question, id: u16) {
    let Some(slot) = outgoing.slot() else { return };
    let length = question.bytes.len();
    slot.room[..length].copy_from_slice(&question.bytes);
    slot.room[..2].copy_from_slice(&id.to_be_bytes());
    slot.fill(length, None);
}
