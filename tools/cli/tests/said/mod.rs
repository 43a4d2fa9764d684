//! Runs `terrace inspect` and compares what it says.

use std::process::Command;

use crate::image::Pair;

pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn inspect(args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("inspect")
        .args(args)
        .output()
        .unwrap();
    let code = output.status.code();
    Said {
        code: code.expect("it ended by itself"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Said {
    #[track_caller]
    pub(crate) fn is(&self, code: i32, parts: &[&str]) {
        let all = format!("{}\n--- stderr\n{}", self.out, self.err);
        assert_eq!(self.code, code, "{all}");
        for part in parts {
            assert!(all.contains(part), "no `{part}` in\n{all}");
        }
    }

    #[track_caller]
    pub(crate) fn is_not(&self, part: &str) -> &Self {
        assert!(!self.out.contains(part), "`{part}` in\n{}", self.out);
        self
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Both devices of a pair, then more arguments.
pub(crate) fn both(pair: &Pair, more: &[&str]) -> Said {
    inspect(&[&[pair.a.arg(), pair.b.arg()], more].concat())
}
