//! The server as its clients meet it: the program with the built-in model on a free port, and requests over a socket.

mod chat;
mod client;
mod errors;
mod limits;
mod messages;
mod mutations;
mod responses;
mod server;

use server::Server;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// One server for all tests that only ask.
fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        // A static is never dropped: a shell ends the server when this process, and with it the pipe, has ended.
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$@\" & cat > /dev/null; kill -KILL $!", "sh", env!("CARGO_BIN_EXE_glimmer")]);
        shell.stdin(Stdio::piped());
        let server = Server::launch(shell, &["--queue", "200"]);
        server.wait_until_ready();
        server
    })
}
