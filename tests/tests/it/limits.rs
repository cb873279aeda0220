//! Messages at the limits of every field: an accepted message is handled or becomes a dead letter, and its lane goes on; any
//! other message is refused for good. Nothing is retried without end.
//!
//! The cases are drawn from a seed that is printed with a failure, and can be set in `ONCEBOX_SEED`.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox::store::{Place, Select, Waits};
use oncebox::{
    Accept, Attempt, DeadHead, Envelope, Error, ErrorKind, Failure, Headers, Inbox, Key, Mode, Outcome,
    Report, Retry,
};

use crate::every_store::{Conn, on_every_store};
use crate::stored_fixture::{Chance, LogFixture, seed};

on_every_store!(
    an_accepted_message_is_handled_or_dead_and_its_lane_goes_on,
    an_inline_message_is_handled_or_rejected,
    an_inline_message_that_fails_is_spilled_or_rejected,
);

/// Cases for each test; ten times as many with `ONCEBOX_FULL`.
const CASES: usize = 64;
/// The limit of all names and values of the headers together.
const HEADER_BYTES: usize = 64 * 1024;
/// The limit of the body, unless set otherwise.
const BODY_BYTES: usize = 1024 * 1024;
/// The first second of the year 1 and of the year 10,000, since 1970.
const YEAR_1: i64 = -62_135_596_800;
const YEAR_10_000: i64 = 253_402_300_800;
const TWICE: Retry = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
/// A call that takes longer does not come to an end.
const STUCK: Duration = Duration::from_secs(120);
/// The header of the messages that show that a lane goes on.
const BEHIND: &str = "behind";
const PLAIN_KIND: &str = "plain";
const UNORDERED: &str = "unordered";
const ORDERED: &str = "ordered";
/// A key drawn for one case only.
type Bytes = Vec<u8>;

/// How the handlers end on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Well,
    WellAtTheSecondTry,
    NeverWell,
    Permanent,
}

impl Ending {
    fn is_dead(self) -> bool {
        matches!(self, Self::NeverWell | Self::Permanent)
    }

    fn of_attempt(self, attempt: u32) -> Result<(), Failure> {
        match self {
            Self::Well => Ok(()),
            Self::WellAtTheSecondTry if attempt > 1 => Ok(()),
            Self::WellAtTheSecondTry | Self::NeverWell => {
                Err(oncebox::BoxError::from("not this time").into())
            }
            Self::Permanent => Err(Failure::permanent("it can never work")),
        }
    }
}

/// A message, and how the handlers end on it.
#[derive(Clone)]
struct Case {
    number: usize,
    kind: String,
    key: Option<Bytes>,
    order_by: Option<Bytes>,
    headers: Headers,
    body: Bytes,
    due_at: Option<SystemTime>,
    occurred_at: Option<SystemTime>,
    ending: Ending,
}

/// Lengths instead of bytes: keys and bodies are long.
impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map(Vec::len);
        let start: String = self.kind.chars().take(20).collect();
        write!(
            f,
            "case {}: kind {start:?} of {} bytes, key of {:?} bytes, ordering key of {:?} bytes, {} headers of {} bytes, \
             body of {} bytes, due {:?} s, occurred {:?} s since 1970, handlers end {:?}",
            self.number,
            self.kind.len(),
            bytes(&self.key),
            bytes(&self.order_by),
            self.headers.len(),
            header_bytes(&self.headers),
            self.body.len(),
            self.due_at.map(seconds),
            self.occurred_at.map(seconds),
            self.ending,
        )
    }
}

fn seconds(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap(),
        Err(before) => -i64::try_from(before.duration().as_secs()).unwrap(),
    }
}

fn at(seconds: i64) -> SystemTime {
    let away = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(away),
        false => SystemTime::UNIX_EPOCH.checked_add(away),
    };
    time.unwrap()
}

fn header_bytes(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Milliseconds since 1970: stores keep no more.
fn to_ms(time: SystemTime) -> i128 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => i128::try_from(since.as_millis()).unwrap(),
        Err(before) => -i128::try_from(before.duration().as_millis()).unwrap(),
    }
}

impl Case {
    fn envelope(&self) -> Envelope {
        let envelope = Envelope::new(self.kind.clone(), self.body.clone()).with_headers(self.headers.clone());
        let envelope = self.key.iter().fold(envelope, |envelope, key| envelope.with_key(&key[..]));
        let envelope = self.order_by.iter().fold(envelope, |envelope, key| envelope.with_order_by(&key[..]));
        let envelope = self.due_at.iter().fold(envelope, |envelope, at| envelope.with_due_at(*at));
        self.occurred_at.iter().fold(envelope, |envelope, at| envelope.with_occurred_at(*at))
    }

    /// Whether every field is within its limits.
    fn is_within_limits(&self) -> bool {
        let is_time =
            |time: &Option<SystemTime>| time.is_none_or(|time| time >= at(YEAR_1) && time < at(YEAR_10_000));
        let is_kind = kinds().contains(&self.kind);
        let is_key = self.key.as_ref().is_some_and(|key| (1..=Key::MAX_BYTES).contains(&key.len()));
        let is_order = self.order_by.as_ref().is_none_or(|key| key.len() <= Key::MAX_BYTES);
        is_kind
            && is_key
            && is_order
            && is_time(&self.due_at)
            && is_time(&self.occurred_at)
            && header_bytes(&self.headers) <= HEADER_BYTES
            && self.body.len() <= BODY_BYTES
    }

    fn is_due_later(&self) -> bool {
        self.due_at.is_some_and(|due| due > SystemTime::now())
    }

    fn effect(&self, handler: &str) -> String {
        format!("{handler} case {}", self.number)
    }

    fn effect_behind(&self, handler: &str) -> String {
        format!("{handler} behind {}", self.number)
    }

    /// A plain message in the same lane.
    fn behind(&self) -> Envelope {
        let number = self.number.to_string();
        Envelope::new(PLAIN_KIND, "plain").with_key(format!("behind {number}")).with_header(BEHIND, number)
    }

    /// What a handler was given that is not what was sent.
    fn difference(&self, envelope: &Envelope) -> Option<String> {
        let order_by = self.order_by.as_deref().map(Key::new);
        let time = |time: Option<SystemTime>| time.map(to_ms);
        [
            ("kind", envelope.kind() == self.kind),
            ("key", envelope.key().is_none_or(|key| Some(key.as_bytes()) == self.key.as_deref())),
            ("ordering key", envelope.order_by() == order_by.as_ref()),
            ("headers", envelope.headers() == &self.headers),
            ("body", envelope.body() == self.body),
            ("occurred_at", time(envelope.occurred_at()) == time(self.occurred_at)),
            ("due_at", time(envelope.due_at()) == time(self.due_at)),
        ]
        .into_iter()
        .find_map(|(field, is_same)| (!is_same).then(|| format!("the handler got another {field}")))
    }
}

/// The kinds that handlers take: quotes, any script, one byte and the longest.
fn kinds() -> Vec<String> {
    let named =
        [PLAIN_KIND, "k", "o'brien \"x\"", "a;drop table marker --", "台帳", "\u{1F600}", "%s \\ $1 ?"];
    named.into_iter().map(str::to_owned).chain(["n".repeat(200), "é".repeat(100)]).collect()
}

/// Draws cases: most fields are plain, so that a case that fails says which one it is about.
struct Draw(Chance);

impl Draw {
    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.0.below(of.len())].clone()
    }

    fn is_plain(&mut self) -> bool {
        self.0.below(3) > 0
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        (0..length).map(|_| u8::try_from(self.0.below(256)).unwrap()).collect()
    }

    fn kind(&mut self) -> String {
        let refused = ["", "a\0b", "\u{1}", "line\nbreak", "tab\t", "\u{7f}", "\u{85}", "@accept"];
        match self.0.below(6) {
            0..3 => PLAIN_KIND.to_owned(),
            3 | 4 => self.pick(&kinds()),
            _ if self.0.below(4) == 0 => self.pick(&["n".repeat(201), "é".repeat(101)]),
            _ => self.pick(&refused).to_owned(),
        }
    }

    fn key(&mut self, number: usize) -> Bytes {
        if self.is_plain() {
            return format!("key {number}").into_bytes();
        }
        let length = self.pick(&[0, 1, 511, 512, 513, 65_536, 65_537]);
        self.bytes(length)
    }

    fn text(&mut self) -> String {
        self.pick(&["", "\0", "a\0b", "é台\u{1F600}", "\"quoted\"", "\\u0000", "\r\n", "\u{1}\u{7f}", "x"])
            .to_owned()
    }

    fn headers(&mut self) -> Headers {
        let mut headers = Headers::new();
        match self.0.below(8) {
            0..4 => {}
            4 => (0..1 + self.0.below(4)).for_each(|_| headers.append(self.text(), self.text())),
            5 => (0..1_000).for_each(|n| headers.append(format!("name-{n}"), self.text())),
            6 => headers.append(self.text(), "v".repeat(10_000)),
            _ => {
                // As many bytes as are taken, or one more. Control characters are the longest as JSON.
                let value = self.pick(&["v", "\0", "\u{1}", "\""]);
                let bytes = HEADER_BYTES + self.0.below(2);
                headers.append("name", value.repeat(bytes - "name".len()));
            }
        }
        headers
    }

    fn body(&mut self) -> Bytes {
        match self.0.below(8) {
            0..4 => b"plain".to_vec(),
            4 => Bytes::new(),
            5 => vec![0xff, 0xfe, 0x00],
            _ => {
                let bytes = BODY_BYTES + self.0.below(2);
                self.bytes(1).repeat(bytes)
            }
        }
    }

    fn time(&mut self) -> Option<SystemTime> {
        let limit = i64::MAX;
        let drawn = [
            -1,
            YEAR_1,
            YEAR_1 - 1,
            YEAR_1 - 86_400 * 366,
            YEAR_10_000 - 1,
            YEAR_10_000,
            YEAR_10_000 * 2,
            // Beyond what PostgreSQL keeps, and what fits into milliseconds.
            9_224_318_016_000,
            limit / 1_000,
            limit,
            -limit / 1_000,
            -limit,
        ];
        if self.is_plain() { None } else { Some(at(self.pick(&drawn))) }
    }

    fn case(&mut self, number: usize) -> Case {
        let mut case = Case {
            number,
            kind: self.kind(),
            key: (self.0.below(20) > 0).then(|| self.key(number)),
            order_by: (self.0.below(3) > 0).then(|| self.key(number)),
            headers: self.headers(),
            body: self.body(),
            due_at: self.time(),
            occurred_at: self.time(),
            ending: self.pick(&[
                Ending::Well,
                Ending::Well,
                Ending::WellAtTheSecondTry,
                Ending::NeverWell,
                Ending::Permanent,
            ]),
        };
        // Messages behind one that is due later wait for it, if they have the same ordering key.
        if case.is_due_later() && case.order_by.as_ref().is_some_and(|key| key.len() < 2) {
            case.order_by = None;
        }
        case
    }
}

/// What handlers need to know, and what they noticed.
#[derive(Clone, Default)]
struct Scene(Arc<Mutex<Noticed>>);

#[derive(Default)]
struct Noticed {
    case: Option<Case>,
    differences: Vec<String>,
}

impl Scene {
    fn begin(&self, case: &Case) {
        *self.0.lock().unwrap() = Noticed { case: Some(case.clone()), differences: Vec::new() };
    }

    fn case(&self) -> Case {
        self.0.lock().unwrap().case.clone().unwrap()
    }

    fn note_difference(&self, case: &Case, envelope: &Envelope) {
        if let Some(difference) = case.difference(envelope) {
            self.0.lock().unwrap().differences.push(difference);
        }
    }

    /// Whether handlers got what was sent.
    fn is_unchanged(&self) -> Result<(), String> {
        self.0.lock().unwrap().differences.first().cloned().map_or(Ok(()), Err)
    }

    /// What every handler does.
    async fn handle<F: LogFixture>(
        &self,
        fixture: &F,
        handler: &str,
        envelope: Envelope,
        attempt: u32,
        conn: &mut Conn<F>,
    ) -> Result<(), Failure> {
        if let Some(number) = envelope.headers().get(BEHIND) {
            return Ok(fixture.effect(conn, &format!("{handler} behind {number}")).await?);
        }
        let case = self.case();
        self.note_difference(&case, &envelope);
        fixture.effect(conn, &case.effect(handler)).await?;
        case.ending.of_attempt(attempt)
    }
}

/// Whether an error asks the sender not to send the message again.
fn is_for_good(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Configuration
            | ErrorKind::Key
            | ErrorKind::Envelope
            | ErrorKind::KeyReuse
            | ErrorKind::Codec
            | ErrorKind::TooLarge
            | ErrorKind::Rejected
    )
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn ends<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(STUCK, call).await.map_err(|_elapsed| format!("{doing} does not come to an end"))
}

/// Works until nothing is left that can run now.
async fn work<F: LogFixture>(inbox: &Inbox<F::Store>) -> Result<(), String> {
    let worked = ends("working", inbox.work_until_idle()).await?;
    worked.map(drop).map_err(|error| format!("working fails: {:?} {}", error.kind(), chain(&error)))
}

/// Accepts and handles a plain message in the same lane.
async fn lane_goes_on<F: LogFixture>(
    fixture: &F,
    inbox: &Inbox<F::Store>,
    case: &Case,
) -> Result<(), String> {
    let accepted = ends("accepting a message behind it", inbox.accept(case.behind())).await?;
    accepted.map_err(|error| format!("a message behind it is refused: {}", chain(&error)))?;
    work::<F>(inbox).await.map_err(|why| format!("the lane is stuck: {why}"))?;
    for handler in [UNORDERED, ORDERED] {
        let effects = fixture.effects(&case.effect_behind(handler)).await;
        if effects != 1 {
            return Err(format!(
                "the lane is stuck: {handler} has {effects} effects of the message behind it"
            ));
        }
    }
    Ok(())
}

/// What has become of an accepted message, and whether that is what the handlers made of it.
async fn has_ended<F: LogFixture>(
    fixture: &F,
    inbox: &Inbox<F::Store>,
    case: &Case,
    handlers: &[&str],
    place: Option<Place>,
) -> Result<(), String> {
    for handler in handlers {
        let effects = fixture.effects(&case.effect(handler)).await;
        let letters = inbox.operators().dead_letters(Select::all().handler(*handler), 10_000).await.unwrap();
        let is_here = |at: Place| place.is_none_or(|place| place == at);
        let is_this = |kind: &str, key: &Option<Key>| {
            kind == case.kind && key.as_ref().map(Key::as_bytes) == case.key.as_deref()
        };
        let dead = letters.iter().filter(|it| is_here(it.place) && is_this(&it.kind, &it.key)).count();
        let tasks = inbox.operators().tasks(Some(handler), 10_000).await.unwrap();
        let waits = tasks.iter().filter(|it| is_here(it.place) && is_this(&it.kind, &it.key));
        let waits: Vec<Waits> = waits.map(|task| task.waits).collect();
        let expected = match () {
            // Inline, it is handled at once.
            () if place.is_some() && case.is_due_later() => (0, 0, 1),
            () if case.ending.is_dead() => (0, 1, 0),
            () => (1, 0, 0),
        };
        if (effects, dead, waits.len()) != expected {
            return Err(format!(
                "{handler}: {effects} effects, {dead} dead letters, tasks {waits:?}; expected {expected:?}"
            ));
        }
    }
    Ok(())
}

/// Runs all cases and reports all that go wrong.
async fn every_case(mut run: impl AsyncFnMut(&Case) -> Result<(), String>) {
    let seed = match std::env::var("ONCEBOX_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed,
        None => seed(),
    };
    let mut draw = Draw(Chance::new(seed));
    let cases = if std::env::var_os("ONCEBOX_FULL").is_some() { CASES * 10 } else { CASES };
    let mut wrong = Vec::new();
    for case in (0..cases).map(|number| draw.case(number)) {
        if let Err(why) = run(&case).await {
            let is_stuck = why.contains("stuck") || why.contains("come to an end");
            wrong.push(format!("{why}\n    {case:?}"));
            if is_stuck {
                // Everything that follows would be stuck too.
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "ONCEBOX_SEED={seed}: {} cases\n{}", wrong.len(), wrong.join("\n"));
}

async fn an_accepted_message_is_handled_or_dead_and_its_lane_goes_on<F: LogFixture>(fixture: F) {
    let scene = Scene::default();
    let handler = |name: &'static str| {
        let (scene, fixture) = (scene.clone(), fixture.clone());
        async move |envelope: Envelope, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            scene.handle(&fixture, name, envelope, n, conn).await
        }
    };
    let inbox = Inbox::builder(fixture.store())
        .stored()
        .lanes(1)
        .retry(TWICE)
        .store_timeout(Duration::from_secs(1))
        .on_raw(UNORDERED, kinds(), handler(UNORDERED))
        .on_raw_with(ORDERED, kinds(), handler(ORDERED), |options| {
            options.ordered().dead_head(DeadHead::Skip)
        })
        .build()
        .await
        .unwrap();
    every_case(async |case: &Case| {
        scene.begin(case);
        let accepted = ends("accepting", inbox.accept(case.envelope())).await?;
        lane_goes_on(&fixture, &inbox, case).await?;
        match accepted {
            Ok(Accept::Accepted(Place { lane, pos })) => {
                let place = Some(Place { lane, pos });
                has_ended(&fixture, &inbox, case, &[UNORDERED, ORDERED], place).await?;
                scene.is_unchanged()?;
                case.is_within_limits().then_some(()).ok_or_else(|| "it is accepted beyond a limit".into())
            }
            // Short keys come again.
            Ok(Accept::Duplicate { .. } | Accept::KeyReuse { .. }) => Ok(()),
            Err(error) if !is_for_good(&error) => {
                Err(format!("the sender is to send it again: {:?}, {}", error.kind(), chain(&error)))
            }
            Err(error) if case.is_within_limits() => {
                Err(format!("it is refused within all limits: {}", chain(&error)))
            }
            Err(_) => Ok(()),
        }
    })
    .await;
}

/// Whether the report of an inline call is a final one.
fn is_final(case: &Case, report: &Report) -> Result<Vec<Outcome>, String> {
    let outcomes: Vec<Outcome> = report.outcomes().map(|(_, outcome)| outcome.clone()).collect();
    let is_rejected = |outcome: &Outcome| matches!(outcome, Outcome::Rejected(_));
    if case.is_within_limits() && outcomes.iter().any(is_rejected) && case.ending != Ending::Permanent {
        return Err(format!("it is rejected within all limits: {outcomes:?}"));
    }
    if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Retry { .. } | Outcome::Busy)) {
        return Err(format!("the sender is to send it again: {outcomes:?}"));
    }
    Ok(outcomes)
}

async fn process<F: LogFixture>(inbox: &Inbox<F::Store>, case: &Case) -> Result<Option<Report>, String> {
    match ends("processing", inbox.process(case.envelope())).await? {
        Ok(report) => Ok(Some(report)),
        Err(error) if is_for_good(&error) && !case.is_within_limits() => Ok(None),
        Err(error) => Err(format!("the call fails: {:?}, {}", error.kind(), chain(&error))),
    }
}

async fn an_inline_message_is_handled_or_rejected<F: LogFixture>(fixture: F) {
    let scene = Scene::default();
    let builder = Inbox::builder(fixture.store()).store_timeout(Duration::from_secs(1));
    let handler = {
        let (scene, fixture) = (scene.clone(), fixture.clone());
        async move |envelope: Envelope, conn: &mut Conn<F>| -> Result<(), Failure> {
            let case = scene.case();
            scene.note_difference(&case, &envelope);
            fixture.effect(conn, &case.effect("inline")).await?;
            // Without a log, a handler that fails is the sender's to retry.
            if case.ending == Ending::Permanent { case.ending.of_attempt(1) } else { Ok(()) }
        }
    };
    let inbox = builder.on_raw("inline", kinds(), handler).build().await.unwrap();
    every_case(async |case: &Case| {
        scene.begin(case);
        let Some(report) = process::<F>(&inbox, case).await? else { return Ok(()) };
        let outcomes = is_final(case, &report)?;
        let effects = fixture.effects(&case.effect("inline")).await;
        let done = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done)).count();
        if effects != done as u64 {
            return Err(format!("{effects} effects with {outcomes:?}"));
        }
        scene.is_unchanged()
    })
    .await;
}

async fn an_inline_message_that_fails_is_spilled_or_rejected<F: LogFixture>(fixture: F) {
    let scene = Scene::default();
    let handler = |name: &'static str| {
        let (scene, fixture) = (scene.clone(), fixture.clone());
        async move |envelope: Envelope, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
            scene.handle(&fixture, name, envelope, n, conn).await
        }
    };
    let inbox = Inbox::builder(fixture.store())
        .mode(Mode::inline().spill())
        .lanes(1)
        .retry(TWICE)
        .store_timeout(Duration::from_secs(1))
        .on_raw(UNORDERED, kinds(), handler(UNORDERED))
        .build()
        .await
        .unwrap();
    every_case(async |case: &Case| {
        scene.begin(case);
        let Some(report) = process::<F>(&inbox, case).await? else { return Ok(()) };
        let outcomes = is_final(case, &report)?;
        work::<F>(&inbox).await.map_err(|why| format!("the lane is stuck: {why}"))?;
        let is_new = |outcome: &Outcome| matches!(outcome, Outcome::Done | Outcome::Queued);
        if !outcomes.is_empty() && outcomes.iter().all(is_new) {
            has_ended(&fixture, &inbox, case, &[UNORDERED], None).await?;
        }
        scene.is_unchanged()
    })
    .await;
}
