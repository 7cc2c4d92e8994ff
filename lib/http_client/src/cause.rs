//! What is behind an error: the outermost rarely says more than that there was one.

use std::error::Error;

/// The innermost cause, which says what happened: `Connection refused`.
pub fn innermost(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.last().map_or_else(String::new, ToString::to_string)
}

/// An error with all that caused it, but for what was said already.
pub fn chain(error: &dyn Error) -> String {
    std::iter::successors(error.source(), |error| (*error).source()).fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn causes_are_told_from_the_inside_or_from_the_outside() {
        let error = |texts: &[&'static str]| {
            let wrap = |source, text: &&'static str| Some(Box::new(Layer { text, source }));
            texts.iter().rev().fold(None, wrap).unwrap()
        };
        for (texts, expected) in [
            (&["refused"][..], ["refused", "refused"]),
            (&["request", "refused"], ["refused", "request: refused"]),
            (&["request", "connect", "refused"], ["refused", "request: connect: refused"]),
            (&["request: connect", "connect", "refused"], ["refused", "request: connect: refused"]),
        ] {
            let error = error(texts);
            assert_eq!([innermost(&*error), chain(&*error)], expected);
        }
    }
}
