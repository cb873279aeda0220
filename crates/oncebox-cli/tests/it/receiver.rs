//! A service that receives messages, sends the responses of the test, and records the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use tokio::net::{TcpListener, TcpSocket};

/// A response: a status, headers, and a delay.
#[derive(Clone, Debug)]
pub(crate) struct ServiceResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) delay: Duration,
}

pub(crate) fn status(status: u16) -> ServiceResponse {
    ServiceResponse { status, headers: Vec::new(), delay: Duration::ZERO }
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) at: Instant,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) path: String,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name}: {:?}", self.headers))
            .to_str()
            .unwrap()
    }
}

/// The address of a service that is down: connections to it are refused.
pub(crate) struct ClosedReceiver {
    // Bound, so that no other process takes the port, but not listening.
    socket: TcpSocket,
    pub(crate) address: String,
}

impl ClosedReceiver {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        Self { socket, address }
    }

    /// Starts the service. It sends these responses, and then 200.
    pub(crate) fn open(self, responses: impl IntoIterator<Item = ServiceResponse>) -> Receiver {
        Receiver::serve(self.socket.listen(1024).unwrap(), responses)
    }
}

#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: String,
    state: Arc<Mutex<ReceiverState>>,
}

#[derive(Default)]
struct ReceiverState {
    responses: VecDeque<ServiceResponse>,
    requests: Vec<ReceivedRequest>,
}

impl Receiver {
    /// Sends these responses, and then 200.
    pub(crate) async fn start(responses: impl IntoIterator<Item = ServiceResponse>) -> Self {
        ClosedReceiver::new().open(responses)
    }

    fn serve(listener: TcpListener, responses: impl IntoIterator<Item = ServiceResponse>) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(ReceiverState {
            responses: responses.into_iter().collect(),
            requests: Vec::new(),
        }));
        let router = Router::new().fallback(receive).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state }
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Waits for this number of requests.
    pub(crate) async fn wait_for(&self, count: usize) -> Vec<ReceivedRequest> {
        loop {
            let requests = self.requests();
            if requests.len() >= count {
                return requests;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn receive(
    State(state): State<Arc<Mutex<ReceiverState>>>,
    uri: axum::http::Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body = String::from_utf8(body.to_vec()).unwrap();
    let planned = {
        let mut state = state.lock().unwrap();
        state.requests.push(ReceivedRequest {
            at: Instant::now(),
            headers,
            body,
            path: uri.path().to_owned(),
        });
        state.responses.pop_front().unwrap_or_else(|| status(200))
    };
    tokio::time::sleep(planned.delay).await;
    let mut response = (StatusCode::from_u16(planned.status).unwrap(), "the response").into_response();
    for (name, value) in planned.headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}
