//! Aim: the commands that talk to a node, as a user and a script call them: what they print, what they
//! write, and the exit code of each way they can end. Method: the built binary as a child process, and
//! the small node of the client's tests.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![forbid(unsafe_code)]

#[path = "../../../transport/client/tests/client/node.rs"]
#[expect(dead_code, reason = "the client's tests use more of its switches")]
mod node;
#[path = "../../../transport/client/tests/client/rails.rs"]
#[expect(dead_code, reason = "the client's tests use more of its switches")]
mod rails;
#[path = "../../../transport/client/tests/client/store.rs"]
mod store;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use node::Node;

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, SeqCst);
        let name = format!("terrace-remote-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(PathBuf::from(&path).parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

struct Said {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Said {
    #[track_caller]
    fn is(&self, code: i32, parts: &[&str]) {
        let out = String::from_utf8_lossy(&self.out);
        let all = format!("{out}\n--- stderr\n{}", self.err);
        assert_eq!(self.code, code, "{all}");
        for part in parts {
            assert!(all.contains(part), "no `{part}` in\n{all}");
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out).unwrap()
    }
}

/// Runs `terrace` with the node's address from the environment.
fn run_with(address: &str, args: &[&str], input: &[u8]) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(args)
        .env("TERRACE_ADDR", address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read it closes it.
    drop(child.stdin.take().unwrap().write_all(input));
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: output.stdout,
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(node: &Node, args: &[&str]) -> Said {
    run_with(&node.address(), args, b"")
}

#[test]
fn block_goes_from_stdin_to_stdout_and_through_files() {
    let (node, folder) = (Node::start(2), Folder::new());
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let put = run_with(&node.address(), &["put", "a"], &bytes);
    put.is(0, &["a\tstored\tlen=100000\tdurable=false"]);
    let got = run(&node, &["get", "a"]);
    assert_eq!((got.code, &got.out), (0, &bytes));
    run(&node, &["get", "a", "-o", &folder.path("a")]).is(0, &[]);
    assert_eq!(folder.read("a"), bytes);
    let path = folder.write("b", b"other");
    run(&node, &["put", "a", &path]).is(0, &["already there"]);
    run(&node, &["put", "--replace", "a", &path]).is(0, &["stored"]);
    let got = run(&node, &["get", "a", "--addr", &node.address()]);
    assert_eq!((got.code, &got.out[..]), (0, &b"other"[..]));
    run(&node, &["get", "a", "--namespace", "another"]).is(1, &["no such block"]);
}

/// The node tells of each block at each shard once, behind three lost events.
#[test]
fn events_are_told_line_by_line() {
    let node = Node::start(2);
    run_with(&node.address(), &["put", "a"], b"value").is(0, &[]);
    let said = run(&node, &["events", "--kind", "stored", "--count", "2"]);
    said.is(0, &["\tstored\ta\n", "3 events were lost"]);
    let said = run(&node, &["events", "--count", "1", "--json"]);
    let lines = String::from_utf8(said.out).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    assert_eq!(lines[0]["lost"], 3);
    assert_eq!(
        (&lines[1]["key"], &lines[1]["kind"]),
        (&"a".into(), &"stored".into())
    );
    run(&node, &["events", "--kind", "moved"]).is(2, &["--kind", "moved", "demoted"]);
}

#[test]
fn long_file_is_cut_into_pieces_and_comes_back_whole() {
    let (node, folder) = (Node::start(3), Folder::new());
    let bytes: Vec<u8> = (0..=250).cycle().take(25_000).collect();
    let path = folder.write("long", &bytes);
    let put = run(&node, &["put", "k", &path, "--piece", "10000B", "--json"]);
    put.is(0, &["k.part-00003-of-00003"]);
    assert_eq!(put.json()["results"].as_array().unwrap().len(), 3);
    let got = run(&node, &["get", "k"]);
    assert_eq!((got.code, &got.out), (0, &bytes));
    run(&node, &["rm", "k.part-00002-of-00003"]).is(0, &["removed"]);
    let got = run(&node, &["get", "k", "-o", &folder.path("out")]);
    got.is(1, &["key `k.part-00002-of-00003`: no such block"]);
    assert!(got.out.is_empty());
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
    assert_eq!(left.len(), 1, "no half of a file is left");
}

#[test]
fn block_under_the_key_of_pieces_never_hides_them() {
    let (node, folder) = (Node::start(3), Folder::new());
    let small = folder.write("small", b"old");
    let big = folder.write("big", &[7; 25]);
    run(&node, &["put", "k", &small]).is(0, &["k\tstored"]);
    let kept = run(&node, &["put", "k", &big, "--piece", "10B"]);
    kept.is(0, &["k\talready there as one block"]);
    assert_eq!(run(&node, &["get", "k"]).out, b"old");
    assert_eq!(node.store.lock().unwrap().len(), 1, "no piece was stored");
    let put = ["put", "k", &big, "--piece", "10B", "--replace"];
    run(&node, &put).is(0, &["k.part-00003-of-00003\tstored"]);
    assert_eq!(run(&node, &["get", "k"]).out, [7; 25]);
}

#[test]
fn pieces_of_two_lengths_are_named() {
    let (node, folder) = (Node::start(2), Folder::new());
    let path = folder.write("long", &[7; 50]);
    run(&node, &["put", "k", &path, "--piece", "10B"]).is(0, &["of-00005"]);
    run(&node, &["put", "k", &path, "--piece", "20B"]).is(0, &["of-00003"]);
    run(&node, &["get", "k"]).is(2, &["key `k`: pieces of several lengths are stored"]);
}

#[test]
fn output_that_is_no_plain_file_is_left_alone() {
    use std::os::unix::fs::FileTypeExt;
    let (node, folder) = (Node::start(1), Folder::new());
    run_with(&node.address(), &["put", "k"], b"value").is(0, &[]);
    let path = folder.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    run(&node, &["get", "k", "-o", &path]).is(2, &["socket: there, and no plain file"]);
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
}

#[test]
fn folder_goes_and_comes_back() {
    let (node, folder) = (Node::start(2), Folder::new());
    folder.write("in/one", b"1");
    folder.write("in/deep/two", b"22");
    folder.write("in/deep/long", &[7; 1000]);
    let put = run(&node, &["put", "f", &folder.path("in"), "--piece", "400B"]);
    put.is(
        0,
        &["f/one", "f/deep/two", "f/deep/long.part-00003-of-00003"],
    );
    run(&node, &["get", "f/", "-o", &folder.path("out")]).is(0, &[]);
    assert_eq!(folder.read("out/one"), b"1");
    assert_eq!(folder.read("out/deep/two"), b"22");
    assert_eq!(folder.read("out/deep/long"), [7; 1000]);
    run(&node, &["get", "f/"]).is(2, &["give -o FOLDER"]);
    run(&node, &["put", "s/", &folder.path("out")]).is(0, &["s/deep/two\t"]);
    run(&node, &["get", "g/", "-o", &folder.path("out")]).is(1, &["no such block"]);
    // A key that somebody chose to write elsewhere.
    run_with(&node.address(), &["put", "h/../../escaped"], b"x").is(0, &[]);
    let got = run(&node, &["get", "h/", "-o", &folder.path("out")]);
    got.is(2, &["no path within"]);
}

#[test]
fn keys_are_told_one_by_one_and_the_exit_code_is_the_worst() {
    let node = Node::start(2);
    run_with(&node.address(), &["put", "a"], b"value").is(0, &[]);
    run(&node, &["exists", "a"]).is(0, &["a\tstored\ttier=dram"]);
    run(&node, &["exists", "a", "b"]).is(1, &["b\tmissing"]);
    let stat = run(&node, &["stat", "a", "b", "--json"]);
    assert_eq!(stat.code, 1);
    let json = stat.json();
    assert_eq!(json["exit_code"], 1);
    assert_eq!(json["results"][0]["len"], 5);
    assert_eq!(json["results"][0]["key_hex"], "61");
    assert_eq!(json["results"][1]["status"], "missing");
    run(&node, &["prefetch", "a"]).is(0, &["stored"]);
    run(&node, &["pin", "a", "--for", "1"]).is(0, &["pinned"]);
    run(&node, &["pin", "b"]).is(1, &["missing"]);
    run(&node, &["ls"]).is(0, &["a\tdram\tlen=5\tdurable=false"]);
    let none = run(&node, &["ls", "x", "--json"]);
    assert_eq!(none.json()["results"].as_array().unwrap().len(), 0);
    run(&node, &["ping"]).is(0, &["shard 0", "shard 1\tnode epoch 1"]);
    run(&node, &["rm", "a"]).is(0, &["a\tremoved"]);
    run(&node, &["rm", "a"]).is(1, &["missing"]);
    run(&node, &["rm", "--all"]).is(0, &["0 blocks removed"]);
}

/// Aim: `ping --rdma` tells how long reads take and by which rails they went, leaves no blocks, and says
/// why when there are no rails.
#[test]
fn ping_reads_out_of_the_memory_of_a_node_that_allows_it() {
    let node = Node::with_rails(2);
    let args = ["ping", "--rdma", "auto", "--rdma-listen", "127.0.0.1"];
    let json = run(&node, &[&args[..], &["--json"]].concat()).json();
    assert_eq!(json["shards"].as_array().unwrap().len(), 2, "{json}");
    let told = &json["one_sided"];
    assert!(told["gets"].as_u64() > Some(300), "{json}");
    assert_eq!(told["pulled_puts"], 17, "{json}");
    assert_eq!(told["rails"][0]["state"], "up", "{json}");
    assert!(
        told["rails"][0]["bytes"].as_u64() > Some(64 << 20),
        "{json}"
    );
    run(&node, &args).is(
        0,
        &[
            "shard 1",
            "one-sided\t16 KiB in ",
            "17 of 17 puts pulled",
            "rail tcp ",
        ],
    );
    assert_eq!(run(&node, &["ls"]).out, b"");

    run(&node, &["ping", "--rdma", "off"]).is(0, &["shard 0"]);
    run(&node, &["ping", "--rdma", ""]).is(2, &["devices", "NAME or NAME/PORT"]);
    run(&node, &["ping", "--rdma", "no0"]).is(3, &["RDMA"]);
    run(&node, &["ping", "--rdma-listen", "127.0.0.1"]).is(2, &["--rdma "]);
    let unmapped = ["ping", "--rdma", "auto", "--rdma-listen", "0.0.0.0"];
    run(&node, &unmapped).is(
        2,
        &["listen is 0.0.0.0", "an address that the node can reach"],
    );
    let plain = Node::start(1);
    run(&plain, &["ping", "--rdma", "auto"]).is(3, &["the node grants none"]);
    assert_eq!(run(&plain, &["ls"]).out, b"");
}

#[test]
fn each_way_to_fail_has_its_exit_code_and_one_line() {
    let (node, folder) = (Node::start(1), Folder::new());
    let empty = folder.write("empty", b"");
    let token = folder.write("token", b" secret\nWhat the token is for.\n");
    for (args, wrong) in [
        (&["put", "k", "no such file"][..], "no such file: "),
        (&["put", "k", &empty], "an empty file"),
        (&["put", "k"], "stdin is empty"),
        (
            &["put", "k", &token, "--piece", "129MiB"],
            "--piece is 135266304",
        ),
        (&["get", "k", "--addr", "nowhere"], "address is `nowhere`"),
        (&["get", "k", "--namespace", ""], "it is empty"),
        (&["get", "k", "--token-file", &empty], "--token-file"),
        (&["get", "k", "--tls-cert", &token], "without --tls-ca"),
        (&["get", "k", "--tls-ca", "absent"], "--tls-ca absent: "),
        (&["get", "k", "--tls-ca", &empty], "tls.ca is 0 bytes"),
        (
            &["get", "k", "--tls-ca", &token, "--tls-key", &token],
            "--tls-cert and --tls-key both",
        ),
        (&["get", "k", "--json"], "give -o FILE"),
        (&["exists", ""], "the key is empty"),
    ] {
        let said = run(&node, args);
        said.is(2, &[wrong]);
        assert!(said.err.lines().count() <= 1, "{}", said.err);
    }
    run(&node, &["exists"]).is(2, &["Usage"]);
    run(&node, &["get", "k", "--timeout", "0"]).is(2, &["--timeout"]);

    node.switches.put_status.store(2, SeqCst);
    run(&node, &["put", "k", &token]).is(4, &["rejected: the policy did not admit"]);
    node.switches.put_status.store(1, SeqCst);
    run(&node, &["put", "k", &token]).is(3, &["busy"]);
    node.switches.put_status.store(0, SeqCst);
    *node.token.lock().unwrap() = b"secret".to_vec();
    let said = run(&node, &["ping"]);
    said.is(4, &["not authenticated: give a token"]);
    run(&node, &["ping", "--token-file", &token]).is(0, &[]);
    node.switches.silent.store(true, SeqCst);
    let late = ["exists", "k", "--timeout", "1", "--token-file", &token];
    run(&node, &late).is(3, &["no answer within 1s"]);
    node.kill();
    let said = run(&node, &["get", "k"]);
    said.is(
        3,
        &[
            "terrace: 127.0.0.1:",
            "key `k`: the node is not available: connect",
        ],
    );
    assert_eq!(said.err.lines().count(), 1);
}
