//! Rust source taken apart: code without comments and literals, and the comments alone.
//!
//! Both halves keep every line where it was, so that a position in one is a position in the
//! file. It knows nested block comments, raw strings and identifiers, byte and C strings, and
//! tells a character from a lifetime; it does not parse.

/// The two halves of a file.
pub(super) struct RustText {
    /// The file with comments and the contents of literals blanked.
    pub(super) code: String,
    /// The file with everything but comments blanked.
    pub(super) comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

struct Scanner {
    chars: Vec<char>,
    at: usize,
    text: RustText,
}

impl RustText {
    /// Takes a source file apart.
    pub(super) fn split(source: &str) -> Self {
        let text = Self {
            code: String::new(),
            comments: String::new(),
        };
        let mut scanner = Scanner {
            chars: source.chars().collect(),
            at: 0,
            text,
        };
        while scanner.at < scanner.chars.len() {
            scanner.step();
        }
        scanner.text
    }

    /// Lines of code with their numbers, counted from 1.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }

    /// Lines of comments with their numbers, counted from 1.
    pub(super) fn comment_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.comments
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
    }
}

impl Scanner {
    fn peek(&self, offset: usize) -> Option<char> {
        self.chars.get(self.at + offset).copied()
    }

    fn take(&mut self, part: Part) {
        let Some(char) = self.peek(0) else { return };
        let blank = if char == '\n' { '\n' } else { ' ' };
        self.text
            .code
            .push(if part == Part::Code { char } else { blank });
        self.text
            .comments
            .push(if part == Part::Comment { char } else { blank });
        self.at += 1;
    }

    fn take_many(&mut self, count: usize, part: Part) {
        for _ in 0..count {
            self.take(part);
        }
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => {
                while self.peek(0).is_some_and(|char| char != '\n') {
                    self.take(Part::Comment);
                }
            }
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.char_or_lifetime(),
            (Some(char), _) if is_word(char) => self.word(),
            _ => self.take(Part::Code),
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.take_many(2, Part::Comment);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.take_many(2, Part::Comment);
                    if depth == 0 {
                        return;
                    }
                }
                (Some(_), _) => self.take(Part::Comment),
                (None, _) => return,
            }
        }
    }

    /// A word, which may turn out to be the prefix of a literal: `r#"`, `b'`, `c"`, ...
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.take(Part::Code);
        }
        let word: String = self.chars[start..self.at].iter().collect();
        let hashes = (0..)
            .take_while(|offset| self.peek(*offset) == Some('#'))
            .count();
        match (word.as_str(), self.peek(hashes)) {
            ("r" | "br" | "cr", Some('"')) => self.raw_string(hashes),
            ("b" | "c", Some('"')) if hashes == 0 => self.string(),
            ("b", Some('\'')) if hashes == 0 => self.char_or_lifetime(),
            _ => {}
        }
    }

    fn string(&mut self) {
        self.take(Part::Code);
        loop {
            match self.peek(0) {
                Some('\\') => self.take_many(2, Part::Literal),
                Some('"') | None => return self.take(Part::Code),
                Some(_) => self.take(Part::Literal),
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take_many(hashes + 1, Part::Code);
        while self.peek(0).is_some() {
            let ends = self.peek(0) == Some('"')
                && (1..=hashes).all(|offset| self.peek(offset) == Some('#'));
            if ends {
                return self.take_many(hashes + 1, Part::Code);
            }
            self.take(Part::Literal);
        }
    }

    fn char_or_lifetime(&mut self) {
        match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                self.take(Part::Code);
                self.take_many(2, Part::Literal);
                while self.peek(0).is_some_and(|char| char != '\'') {
                    self.take(Part::Literal);
                }
                self.take(Part::Code);
            }
            (Some(_), Some('\'')) => {
                self.take(Part::Code);
                self.take(Part::Literal);
                self.take(Part::Code);
            }
            _ => self.take(Part::Code),
        }
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

/// The identifiers and numbers of a line, in order.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|char| !is_word(char))
        .filter(|word| !word.is_empty())
}

/// Whether the line has exactly this identifier.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    words(line).any(|candidate| candidate == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_words(source: &str) -> Vec<String> {
        words(&RustText::split(source).code)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn split_strings_of_every_kind_are_blank() {
        let source = r####"a("x1 \" x2"); b(r"x3\"); c(r#"x4 " x5"#); d(b"x6"); e(br##"x7 "# x8"##); f(c"x9");"####;
        assert_eq!(
            code_words(source),
            ["a", "b", "r", "c", "r", "d", "b", "e", "br", "f", "c"]
        );
    }

    #[test]
    fn split_chars_are_blank_and_lifetimes_are_not() {
        let source = r"f::<'life>('x', '\'', '\u{41}', b'y', '/', '/'); g(&'static z)";
        assert_eq!(code_words(source), ["f", "life", "b", "g", "static", "z"]);
    }

    #[test]
    fn split_comments_go_to_the_other_half() {
        let source = "one // two\n/* three /* four */ five */ six\n//! seven\n";
        let text = RustText::split(source);
        assert_eq!(words(&text.code).collect::<Vec<_>>(), ["one", "six"]);
        assert_eq!(
            words(&text.comments).collect::<Vec<_>>(),
            ["two", "three", "four", "five", "seven"]
        );
    }

    #[test]
    fn split_comment_marks_inside_strings_are_no_comments() {
        let text = RustText::split("let a = \"// no\"; let b = '\"'; // yes\n");
        assert_eq!(text.comments.trim(), "// yes");
        assert!(has_word(&text.code, "b"));
    }

    #[test]
    fn split_raw_identifier_is_code() {
        assert_eq!(
            code_words("let r#type = 1; after"),
            ["let", "r", "type", "1", "after"]
        );
    }

    #[test]
    fn split_keeps_lines_where_they_were() {
        let source = "a\n\"x\ny\"\n/* z\n */ b\n";
        let text = RustText::split(source);
        assert_eq!(text.code.lines().count(), source.lines().count());
        assert_eq!(
            text.code_lines()
                .find(|(_, line)| has_word(line, "b"))
                .unwrap()
                .0,
            5
        );
        assert_eq!(
            text.comment_lines()
                .find(|(_, line)| has_word(line, "z"))
                .unwrap()
                .0,
            4
        );
    }

    #[test]
    fn split_unterminated_input_ends() {
        for source in ["\"open", "r#\"open", "/* open", "'\\", "'", "\"\\"] {
            assert_eq!(
                RustText::split(source).code.chars().count(),
                source.chars().count()
            );
        }
    }

    #[test]
    fn has_word_wants_the_whole_identifier() {
        assert!(has_word("unsafe { f() }", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
    }
}
