//! Rust sources as text: what is code in them, without comments, strings and tests.

/// The code of a source file: comments and the contents of strings are blanked, lines stay lines.
///
/// Characters that might be a lifetime are left as they are; a quote in a character does not begin a string.
pub fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|char| if *char == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// The code before the tests, which stand last in a file.
pub fn code_without_tests(source: &str) -> String {
    let code = code(source);
    code.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// The numbers of the lines that contain a whole word of `words`; a word may be a path such as `std::fs`.
pub fn lines_with(code: &str, words: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        found.extend(words.iter().filter(|word| has_word(line, word)).map(|word| (index + 1, (*word).to_owned())));
    }
    found
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let closed = word.ends_with(|char: char| !char.is_alphanumeric()) || !part(after);
        !part(before) && closed
    })
}

/// The paths that `use` brings in, with groups written out: `std::net::{IpAddr, TcpStream}` is two.
pub fn imports(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for item in code.split(';') {
        let Some(at) = item.find("use ").filter(|at| !has_name_before(item, *at)) else { continue };
        let tree: String = item[at + 4..].split_whitespace().collect();
        unfold("", &tree, &mut paths);
    }
    paths
}

fn has_name_before(item: &str, at: usize) -> bool {
    item[..at].chars().next_back().is_some_and(|char| char.is_alphanumeric() || char == '_')
}

fn unfold(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        paths.push(format!("{prefix}{tree}"));
        return;
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut begin) = (0, 0);
    for (at, char) in group.char_indices().chain([(group.len(), ',')]) {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if begin < at {
                    unfold(&format!("{prefix}{head}"), &group[begin..at], paths);
                }
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// Where the comment, string or character that begins at `at` ends; `at` when none does.
fn skipped(chars: &[char], at: usize) -> usize {
    let is = |offset: usize, char: char| chars.get(at + offset) == Some(&char);
    let until = |from: usize, stop: &dyn Fn(usize) -> bool| {
        (from..chars.len()).find(|index| stop(*index)).unwrap_or(chars.len())
    };
    if is(0, '/') && is(1, '/') {
        return until(at, &|index| chars[index] == '\n');
    }
    if is(0, '/') && is(1, '*') {
        let mut depth = 0;
        let mut index = at;
        while index < chars.len() {
            match (chars[index], chars.get(index + 1)) {
                ('/', Some('*')) => (depth, index) = (depth + 1, index + 1),
                ('*', Some('/')) => (depth, index) = (depth - 1, index + 1),
                _ => {}
            }
            index += 1;
            if depth == 0 {
                return index;
            }
        }
        return index;
    }
    if is(0, 'r') && (is(1, '"') || is(1, '#')) && !at.checked_sub(1).is_some_and(|before| name_char(chars[before])) {
        let hashes = chars[at + 1..].iter().take_while(|char| **char == '#').count();
        if !is(1 + hashes, '"') {
            return at;
        }
        let closes = |index: usize| {
            chars[index] == '"'
                && chars.get(index + 1..=index + hashes).is_some_and(|rest| rest.iter().all(|char| *char == '#'))
        };
        return (until(at + 2 + hashes, &closes) + 1 + hashes).min(chars.len());
    }
    if is(0, '"') {
        let mut index = at + 1;
        while index < chars.len() && chars[index] != '"' {
            index += if chars[index] == '\\' { 2 } else { 1 };
        }
        return (index + 1).min(chars.len());
    }
    if is(0, '\'') {
        if is(1, '\\') {
            return (until(at + 3, &|index| chars[index] == '\'') + 1).min(chars.len());
        }
        if is(2, '\'') {
            return at + 3;
        }
    }
    at
}

fn name_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        for (source, words) in [
            ("let a = \"unsafe\"; // unsafe\nunsafe {}", vec![2]),
            ("/* unsafe /* unsafe */ unsafe */ fn a() {}", vec![]),
            ("let a = r#\"un\"safe unsafe\"#; unsafe {}", vec![1]),
            ("let a = 'a'; let q = '\"'; unsafe {} let b = '\\''; unsafe {}", vec![1]),
            ("fn a<'a>(b: &'a str) { unsafe {} } // \"", vec![1]),
            ("unsafe_code; not_unsafe; r\"unsafe\"", vec![]),
            ("let a = \"\\\"unsafe\"; unsafe {}", vec![1]),
        ] {
            let lines: Vec<_> = lines_with(&code(source), &["unsafe"]).into_iter().map(|(line, _)| line).collect();
            assert_eq!(lines, words, "{source}");
        }
    }

    #[test]
    fn groups_of_imports_are_written_out() {
        let code =
            "use std::net::{IpAddr, TcpStream};\nuse a::{b::{c, d}, e};\npub(crate) use f as g;\nfn because() {}";
        assert_eq!(imports(code), ["std::net::IpAddr", "std::net::TcpStream", "a::b::c", "a::b::d", "a::e", "fasg"]);
    }
}
