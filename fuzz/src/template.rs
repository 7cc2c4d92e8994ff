//! Templates of catalogs and the compose files that they make: an error names a line, and what is made is bounded.
//!
//! A line `%%` divides the template of the compose file from that of `rancher-compose.yml`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stacks::{CatalogVersion, Rendered, Template, TemplateError};

/// An answer by the name of the question, and none to some.
fn answer(name: &str) -> Option<String> {
    Some(match name.len() % 6 {
        0 => return None,
        1 => String::new(),
        2 => "true".to_owned(),
        3 => "8080".to_owned(),
        4 => "a \"b c\"  d".to_owned(),
        _ => "x: y\n- z".to_owned(),
    })
}

fn rendered(text: &str) -> Result<Rendered, TemplateError> {
    Template::parse(text)?.render(&answer)
}

fuzz_target!(|text: &str| {
    let (compose, rancher) = match text.split_once("\n%%\n") {
        Some((compose, rancher)) => (compose, Some(rancher)),
        None => (text, None),
    };
    let lines = compose.matches('\n').count() + 1;
    match rendered(compose) {
        Err(error) => assert!((1..=lines).contains(&error.line), "{error}"),
        Ok(made) => {
            for line in 0..=made.text.matches('\n').count() + 2 {
                assert!((1..=lines).contains(&made.line_of(line)), "{line}");
            }
            let rancher = rancher.and_then(|text| rendered(text).ok()).map(|made| made.text);
            let _ = scheduler::fuzzing::stack_file(&made.text, rancher.as_deref());
        }
    }
    let Some(Ok(parsed)) = rancher.map(source::format::parse) else { return };
    if let Ok(version) = CatalogVersion::read(&parsed.value(model::scalar::core)) {
        let given: Vec<_> =
            version.questions.iter().filter_map(|one| Some((one.variable.to_string(), answer(&one.variable)?))).collect();
        let _ = version.answers(&given);
    }
});
