//! A path on a host, of Linux or of Windows, independent of the system that this program runs on.
//!
//! A path with `..` is none: the engine would follow it lexically and the kernel through links, so what it means cannot be
//! said here.

use std::fmt;

/// An absolute path in its components.
#[derive(Clone, Debug)]
pub(super) struct HostPath {
    root: Root,
    components: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// `/`.
    Linux,
    /// A drive, its letter in upper case.
    Drive(char),
    /// `\\.\pipe\`.
    Pipe,
}

impl HostPath {
    /// The path in this text; `None` if it is relative, has a `..`, or means different things to different systems.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.contains('\0') {
            return None;
        }
        let (root, rest) = root(text)?;
        let windows = root != Root::Linux;
        let is_separator = |char| char == '/' || (windows && char == '\\');
        let components: Vec<&str> = rest.split(is_separator).filter(|part| !matches!(*part, "" | ".")).collect();
        let is_clear = |part: &&str| match root {
            // Linux takes a backslash for a letter, and Windows for a separator.
            Root::Linux => *part != ".." && !part.contains('\\'),
            // Windows drops dots and spaces at the end of a name.
            _ => !part.ends_with(['.', ' ']) && !part.contains(':'),
        };
        let components = components.iter().all(is_clear).then_some(components)?;
        Some(Self { root, components: components.into_iter().map(ToOwned::to_owned).collect() })
    }

    /// Whether `other` is this path, or below it.
    pub(super) fn contains(&self, other: &Self) -> bool {
        // Names on Windows have no case. Only letters of ASCII are folded: what the file system folds besides depends on it.
        let same = |(one, two): (&String, &String)| match self.root {
            Root::Linux => one == two,
            _ => one.eq_ignore_ascii_case(two),
        };
        self.root == other.root
            && self.components.len() <= other.components.len()
            && self.components.iter().zip(&other.components).all(same)
    }

    /// Whether it is all of a file system: `/`, or a drive.
    pub(super) fn is_root(&self) -> bool {
        self.components.is_empty() && self.root != Root::Pipe
    }

    /// Whether it is a named pipe of Windows.
    pub(super) fn is_pipe(&self) -> bool {
        self.root == Root::Pipe
    }

    /// The last component.
    pub(super) fn name(&self) -> Option<&str> {
        self.components.last().map(String::as_str)
    }
}

impl PartialEq for HostPath {
    fn eq(&self, other: &Self) -> bool {
        self.contains(other) && other.contains(self)
    }
}

impl Eq for HostPath {}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root {
            Root::Linux => write!(f, "/{}", self.components.join("/")),
            Root::Drive(letter) => write!(f, "{letter}:\\{}", self.components.join("\\")),
            Root::Pipe => write!(f, "\\\\.\\pipe\\{}", self.components.join("\\")),
        }
    }
}

/// The root of a path, and what follows it.
fn root(text: &str) -> Option<(Root, &str)> {
    let separators = |text: &str, count: usize| text.chars().take(count).all(|char| matches!(char, '/' | '\\'));
    let starts_twice = text.len() >= 4 && text.is_char_boundary(4) && separators(text, 2);
    if starts_twice && matches!(&text[2..4], "./" | ".\\") {
        let rest = text.get(4..9).filter(|word| {
            word.get(..4).is_some_and(|name| name.eq_ignore_ascii_case("pipe")) && separators(&word[4..], 1)
        });
        return rest.map(|_| (Root::Pipe, &text[9..]));
    }
    let verbatim = starts_twice && matches!(&text[2..4], "?/" | "?\\");
    let drive = if verbatim { &text[4..] } else { text };
    let mut chars = drive.chars();
    if let (Some(letter), Some(':'), Some('/' | '\\')) = (chars.next(), chars.next(), chars.next())
        && letter.is_ascii_alphabetic()
    {
        return Some((Root::Drive(letter.to_ascii_uppercase()), &drive[3..]));
    }
    // Linux takes two slashes for one, and Windows takes them for another machine.
    (text.starts_with('/') && !verbatim).then(|| (Root::Linux, &text[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_from_one_that_only_begins_like_it() {
        for (folder, inside, outside) in [
            (
                "/data",
                &["/data", "/data/", "//data//a", "/data/./a/b"][..],
                &["/", "/database", "/Data", "/dat", "/a/data"][..],
            ),
            ("/", &["/", "/etc"], &["C:\\"]),
            (
                "c:\\Data",
                &["C:\\data", "C:/DATA/a", "c:\\data\\a", "\\\\?\\C:\\data\\a", "//?/c:/data"],
                &["C:\\", "D:\\data", "C:\\database", "/data", "/c:/data"],
            ),
            ("\\\\.\\pipe\\a", &["//./pipe/a", "\\\\.\\PIPE\\A"], &["\\\\.\\pipe\\ab", "C:\\pipe\\a"]),
        ] {
            let folder = HostPath::parse(folder).unwrap();
            for text in inside {
                assert!(folder.contains(&HostPath::parse(text).unwrap()), "{folder} {text}");
            }
            for text in outside {
                assert!(!folder.contains(&HostPath::parse(text).unwrap()), "{folder} {text}");
            }
        }
    }

    #[test]
    fn what_could_mean_another_path_is_none() {
        for text in [
            "",
            "data",
            "./data",
            "~/data",
            "/data/../etc",
            "/..",
            "/data\\..\\etc",
            "/data\0",
            "C:data",
            "C:",
            "C:\\data\\..\\Windows",
            "C:\\data.\\a",
            "C:\\data \\a",
            "C:\\data\\.. \\a",
            "C:\\data::$DATA",
            "\\data",
            "\\\\host\\share",
            "\\\\?\\UNC\\host\\share",
            "\\\\.\\C:\\data",
            "\\\\.\\PhysicalDrive0",
        ] {
            assert_eq!(HostPath::parse(text).map(|path| path.to_string()), None, "{text}");
        }
    }
}
