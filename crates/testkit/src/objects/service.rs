//! A service on the loopback that is one function: what a test needs of those that hand out credentials.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::http::{Request, Response};

/// Answers a request.
type Answer = dyn Fn(&Request) -> Response + Send + Sync;

/// A service that answers each request with what a function makes of it. It ends when this is dropped.
pub struct LoopbackService {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl LoopbackService {
    /// A service that answers with `answer`, which is called from several threads.
    pub fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> io::Result<LoopbackService> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (answer, ended): (Arc<Answer>, _) = (Arc::new(answer), Arc::<AtomicBool>::default());
        let acceptor = std::thread::spawn({
            let ended = ended.clone();
            move || accept(&listener, &answer, &ended)
        });
        Ok(LoopbackService { address, ended, acceptor: Some(acceptor) })
    }

    /// Its endpoint, as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for LoopbackService {
    fn drop(&mut self) {
        // The acceptor looks for the end whenever somebody comes.
        self.ended.store(true, Ordering::Release);
        let last = TcpStream::connect(self.address);
        if let (Ok(_), Some(acceptor)) = (last, self.acceptor.take()) {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, answer: &Arc<Answer>, ended: &AtomicBool) {
    for connection in listener.incoming() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let Ok(connection) = connection else { continue };
        let answer = answer.clone();
        std::thread::spawn(move || {
            // A client that goes away.
            let _ = serve(&connection, &*answer);
        });
    }
}

/// Serves the requests of one connection until it ends.
fn serve(mut connection: &TcpStream, answer: &Answer) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    while let Some(request) = Request::read(&mut reader)? {
        let response = answer(&request);
        let body = response.sent_of_body(request.method == "HEAD", None);
        response.write(&mut connection, body)?;
    }
    Ok(())
}
