//! The content type that the predecessor's library guessed from a body's first bytes
//! (WHATWG MIME Sniffing, "identifying an unknown MIME type", as of its 2018 table).

/// How many bytes of a body are looked at.
const SNIFFED: usize = 512;

/// What any text is, and every error.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

const HTML: &str = "text/html; charset=utf-8";
const XML: &str = "text/xml; charset=utf-8";
const BINARY: &str = "application/octet-stream";

/// Beginnings of HTML, to be followed by a space or `>`; upper and lower case are the same.
const HTML_TAGS: [&[u8]; 17] = [
    b"<!DOCTYPE HTML",
    b"<HTML",
    b"<HEAD",
    b"<SCRIPT",
    b"<IFRAME",
    b"<H1",
    b"<DIV",
    b"<FONT",
    b"<TABLE",
    b"<A",
    b"<STYLE",
    b"<TITLE",
    b"<B",
    b"<BODY",
    b"<BR",
    b"<P",
    b"<!--",
];

/// Beginnings of other types, as far as text can have them: bodies are UTF-8.
const EXACT: [(&[u8], &str); 22] = [
    (b"%PDF-", "application/pdf"),
    (b"%!PS-Adobe-", "application/postscript"),
    (b"\xEF\xBB\xBF", TEXT),
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"\x00\x00\x02\x00", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b".snd", "audio/basic"),
    (b"ID3", "audio/mpeg"),
    (b"OggS\x00", "application/ogg"),
    (b"MThd\x00\x00\x00\x06", "audio/midi"),
    (b"\x1A\x45\xDF\xA3", "video/webm"),
    (b"\x00\x01\x00\x00", "font/ttf"),
    (b"OTTO", "font/otf"),
    (b"ttcf", "font/collection"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1A\x07\x00", "application/x-rar-compressed"),
    (b"Rar!\x1A\x07\x01\x00", "application/x-rar-compressed"),
    (b"\x00asm", "application/wasm"),
];

/// Beginnings of containers of media: a name, four bytes of length, another name.
const BOXED: [(&[u8], &[u8], &str); 4] = [
    (b"RIFF", b"WEBPVP", "image/webp"),
    (b"FORM", b"AIFF", "audio/aiff"),
    (b"RIFF", b"AVI ", "video/avi"),
    (b"RIFF", b"WAVE", "audio/wave"),
];

/// With which bytes the types in [`EXACT`] and [`BOXED`] begin: most bodies begin with none of them.
const BEGINNINGS: [bool; 256] = {
    let mut beginnings = [false; 256];
    let mut at = 0;
    while at < EXACT.len() {
        beginnings[EXACT[at].0[0] as usize] = true;
        at += 1;
    }
    at = 0;
    while at < BOXED.len() {
        beginnings[BOXED[at].0[0] as usize] = true;
        at += 1;
    }
    beginnings
};

/// The content type of a body; `None` for an empty one.
pub(crate) fn content_type(body: &[u8]) -> Option<&'static str> {
    if body.is_empty() {
        return None;
    }
    let body = &body[..body.len().min(SNIFFED)];
    let white = |byte: &&u8| matches!(byte, b'\t' | b'\n' | b'\x0c' | b'\r' | b' ');
    let trimmed = &body[body.iter().take_while(white).count()..];
    if trimmed.first() == Some(&b'<') {
        if HTML_TAGS.iter().any(|tag| begins_with_tag(trimmed, tag)) {
            return Some(HTML);
        }
        if trimmed.starts_with(b"<?xml") {
            return Some(XML);
        }
    }
    if !BEGINNINGS[usize::from(body[0])] {
        return Some(if trimmed.iter().any(|byte| binary(*byte)) { BINARY } else { TEXT });
    }
    if let Some((_, kind)) = EXACT.iter().find(|(start, _)| body.starts_with(start)) {
        return Some(kind);
    }
    let boxed = |(outer, inner, _): &&(&[u8], &[u8], &str)| {
        body.starts_with(outer) && body.get(8..).is_some_and(|rest| rest.starts_with(inner))
    };
    if let Some((_, _, kind)) = BOXED.iter().find(boxed) {
        return Some(kind);
    }
    Some(if trimmed.iter().any(|byte| binary(*byte)) { BINARY } else { TEXT })
}

/// A byte that text does not have.
fn binary(byte: u8) -> bool {
    matches!(byte, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f)
}

fn begins_with_tag(body: &[u8], tag: &[u8]) -> bool {
    let Some((start, rest)) = body.split_at_checked(tag.len()) else { return false };
    start.eq_ignore_ascii_case(tag) && matches!(rest.first(), Some(b' ' | b'>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_the_first_bytes() {
        for (body, kind) in [
            (&b""[..], None),
            (b"web", Some(TEXT)),
            (b"\n\n", Some(TEXT)),
            ("Grüße".as_bytes(), Some(TEXT)),
            (b"<a href=\"x\">", Some(HTML)),
            (b" \n<a>", Some(HTML)),
            (b"<!doctype html>", Some(HTML)),
            (b"<!DOCTYPE htmlx>", Some(TEXT)),
            (b"<abbr>", Some(TEXT)),
            (b"<a", Some(TEXT)),
            (b"<!-- x", Some(HTML)),
            (b"<?xml version", Some(XML)),
            (b"a\x01b\x7f", Some(BINARY)),
            (b"a\x1bb\x7f", Some(TEXT)),
            (b"%PDF-1.4", Some("application/pdf")),
            (b"GIF89a", Some("image/gif")),
            (b"BMW", Some("image/bmp")),
            (b"PK\x03\x04", Some("application/zip")),
            (b"RIFF1234WAVE", Some("audio/wave")),
            (b"{\"a\":1}", Some(TEXT)),
        ] {
            assert_eq!(content_type(body), kind, "{}", body.escape_ascii());
        }
        let mut late = vec![b'a'; SNIFFED];
        late.push(0);
        assert_eq!(content_type(&late), Some(TEXT));
    }
}
