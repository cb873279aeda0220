//! A service that gets messages, says what the test wants it to say, and remembers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;

/// What it answers: a status, headers, and after which time.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) after: Duration,
}

pub(crate) fn status(status: u16) -> Answer {
    Answer { status, headers: Vec::new(), after: Duration::ZERO }
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) at: Instant,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) path: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name}: {:?}", self.headers))
            .to_str()
            .unwrap()
    }
}

#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: String,
    state: Arc<Mutex<Told>>,
}

#[derive(Default)]
struct Told {
    answers: VecDeque<Answer>,
    got: Vec<Got>,
}

impl Receiver {
    /// Gives these answers, and from then on 200.
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(Told { answers: answers.into_iter().collect(), got: Vec::new() }));
        let router = Router::new().fallback(receive).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state }
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.state.lock().unwrap().got.clone()
    }

    /// Waits until so many requests have come.
    pub(crate) async fn wait_for(&self, requests: usize) -> Vec<Got> {
        loop {
            let got = self.got();
            if got.len() >= requests {
                return got;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn receive(
    State(state): State<Arc<Mutex<Told>>>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body = String::from_utf8(body.to_vec()).unwrap();
    let answer = {
        let mut state = state.lock().unwrap();
        state.got.push(Got { at: Instant::now(), headers, body, path: uri.path().to_owned() });
        state.answers.pop_front().unwrap_or_else(|| status(200))
    };
    tokio::time::sleep(answer.after).await;
    let mut response = (StatusCode::from_u16(answer.status).unwrap(), "the answer").into_response();
    for (name, value) in answer.headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}
