//! The log: lines of text or JSON on standard error, written by a thread of their own.
//!
//! **Invariants**
//! - Nobody who logs waits: when standard error does not take lines, they are lost and counted.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Lines that may wait for standard error.
const LINES_MAX: usize = 1024;

/// How long the end of the process waits for lines to be written.
const FINISH_MAX: Duration = Duration::from_secs(1);

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log of the process.
#[derive(Clone)]
pub(crate) struct Log {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// All lines before it are written when it is answered.
    Finish(SyncSender<()>),
}

impl Log {
    /// Takes what the process logs from now on.
    ///
    /// # Errors
    /// When the thread that writes cannot be started.
    pub(crate) fn start(format: LogFormat) -> io::Result<Self> {
        let log = Self::to(io::stderr())?;
        let filter = std::env::var("TERRACE_LOG").unwrap_or_else(|_| "info".to_owned());
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_ansi(false)
            .with_writer(log.clone());
        match format {
            LogFormat::Text => subscriber.init(),
            LogFormat::Json => subscriber.event_format(JsonLines).init(),
        }
        Ok(log)
    }

    fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, inbox) = sync_channel(LINES_MAX);
        let named = std::thread::Builder::new().name("terrace-log".to_owned());
        named.spawn(move || write_lines(&inbox, out))?;
        let lost = Arc::default();
        Ok(Self { lines, lost })
    }

    /// Lines that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until what was logged is written, but not for long.
    pub(crate) fn finish(&self) {
        let (done, wait) = sync_channel(1);
        if self.lines.try_send(Message::Finish(done)).is_ok() {
            let _ = wait.recv_timeout(FINISH_MAX);
        }
    }
}

fn write_lines(inbox: &Receiver<Message>, mut out: impl Write) {
    while let Ok(message) = inbox.recv() {
        match message {
            // Nobody may be reading; the node runs all the same.
            Message::Line(line) => drop(out.write_all(&line)),
            Message::Finish(done) => {
                let _ = out.flush();
                let _ = done.try_send(());
            }
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// Each call writes a whole line.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let sent = self.lines.try_send(Message::Line(line.to_vec()));
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One JSON object a line: time, level, target, message and fields.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        let meta = event.metadata();
        let line = serde_json::json!({
            "timestamp": time,
            "level": meta.level().as_str(),
            "target": meta.target(),
            "message": fields.message,
            "fields": fields.others,
        });
        writeln!(writer, "{line}")
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            _ => self.add(field, value.into()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// An output that tells what it was given.
    struct Told(Sender<Vec<u8>>);

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_line_has_level_target_message_and_fields() {
        let (sender, told) = channel();
        let log = Log::to(Told(sender)).unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .event_format(JsonLines)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let peer = "127.0.0.1:1";
            tracing::warn!(request = 7_u64, %peer, is_last = true, "a \"slow\"\nrequest");
        });
        log.finish();
        let line = String::from_utf8(told.recv().unwrap()).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["level"], "WARN");
        assert_eq!(object["target"], module_path!());
        assert_eq!(object["message"], "a \"slow\"\nrequest");
        assert_eq!(object["fields"]["request"], 7);
        assert_eq!(object["fields"]["peer"], "127.0.0.1:1");
        assert_eq!(object["fields"]["is_last"], true);
        assert!(object["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    /// An output that takes nothing until it is told to.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Aim: who logs does not wait for standard error. Method: one that takes nothing.
    #[test]
    fn lines_that_find_no_room_are_lost_and_counted() {
        let (release, stuck) = channel();
        let log = Log::to(Stuck(stuck)).unwrap();
        for _ in 0..LINES_MAX + 10 {
            (&log).write_all(b"line\n").unwrap();
        }
        // The thread may have taken one.
        assert!((9..=10).contains(&log.lost()), "{}", log.lost());
        drop(release);
        log.finish();
    }
}
