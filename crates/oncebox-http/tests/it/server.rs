//! A server that records its requests, and responds as a test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use tokio::net::TcpListener;
use tokio::sync::Barrier;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Request {
    /// The value of a header that occurs once; `None` without one.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} occurs more than once: {:?}", self.headers);
        Some(std::str::from_utf8(value.as_bytes()).unwrap())
    }
}

/// A running server. It sends its planned statuses first. Then the path of a request is the status of its response: `/503`
/// responds with 503.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone)]
struct Shared {
    requests: Arc<Mutex<Vec<Request>>>,
    planned: Arc<Mutex<VecDeque<u16>>>,
    together: Arc<Barrier>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with([], 1).await
    }

    /// A server that sends these statuses first.
    pub(crate) async fn start_with_statuses(planned: impl IntoIterator<Item = u16>) -> Self {
        Self::start_with(planned, 1).await
    }

    /// A server that responds when this number of requests is there.
    pub(crate) async fn start_with_barrier(together: usize) -> Self {
        Self::start_with([], together).await
    }

    async fn start_with(planned: impl IntoIterator<Item = u16>, together: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let planned = Arc::new(Mutex::new(planned.into_iter().collect()));
        let shared =
            Shared { requests: requests.clone(), planned, together: Arc::new(Barrier::new(together)) };
        let router = Router::new().fallback(respond).with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

async fn respond(State(shared): State<Shared>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let path = uri.path().to_owned();
    let of_path = path.trim_start_matches('/').parse().unwrap_or(200);
    let status = shared.planned.lock().unwrap().pop_front().unwrap_or(of_path);
    shared.requests.lock().unwrap().push(Request { path, headers, body });
    shared.together.wait().await;
    let response = Response::builder().status(status);
    let response = response.header("retry-after", "7").header("location", "/200");
    response.body(Body::from("not today,\nmaybe tomorrow")).unwrap()
}
