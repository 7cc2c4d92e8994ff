//! Bars in an SVG: one panel a section, one bar a row, the shorter the better.

use std::fmt::Write as _;

use crate::report::{Row, Section, number};

const WIDTH: usize = 860;
const LABEL: usize = 230;
const BAR: usize = 16;
const LINE: usize = 24;
const HEAD: usize = 40;

/// Longest bar; room for the figure stays at its right.
const LONGEST: f64 = 380.0;

/// Draws all sections below each other.
pub(crate) fn draw(sections: &[Section], facts: &str) -> String {
    let height = 30 + sections.iter().map(|section| HEAD + LINE * section.rows.len()).sum::<usize>();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0;
    for section in sections {
        top = panel(&mut svg, section, top);
    }
    let _ = writeln!(svg, "<text x=\"10\" y=\"{}\" font-size=\"10\" fill=\"#666\">{}</text>", top + 20, escaped(facts));
    svg.push_str("</svg>\n");
    svg
}

/// Draws one section and returns where the next begins.
fn panel(svg: &mut String, section: &Section, top: usize) -> usize {
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"{}\" font-weight=\"bold\">{} ({})</text>",
        top + 28,
        escaped(&section.title),
        escaped(&section.unit)
    );
    let greatest = section.rows.iter().filter_map(|row| row.figure).fold(f64::MIN_POSITIVE, f64::max);
    for (index, row) in section.rows.iter().enumerate() {
        let y = top + HEAD + index * LINE;
        let length = row.figure.unwrap_or_default() / greatest * LONGEST;
        let colour = if row.subject.starts_with("berth") { "#1769aa" } else { "#b0b8c0" };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect x=\"{LABEL}\" y=\"{y}\" width=\"{length:.1}\" \
             height=\"{BAR}\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
            LABEL - 8,
            y + 13,
            escaped(&row.subject),
            f64::from(u32::try_from(LABEL).unwrap_or_default()) + length + 6.0,
            y + 13,
            escaped(&caption(row)),
        );
    }
    top + HEAD + LINE * section.rows.len()
}

fn caption(row: &Row) -> String {
    let ratio = row.ratio.map(|ratio| format!("  ×{:.2}", ratio.median)).unwrap_or_default();
    row.figure.map_or_else(|| "missing".to_owned(), |figure| format!("{}{ratio}", number(figure)))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_bar_is_that_of_the_greatest_figure() {
        let rows = vec![Row::figure("berth", 2.0), Row::figure("a < b", 8.0), Row::missing("c", "gone")];
        let section = Section { title: "t".to_owned(), unit: "µs".to_owned(), ratio_of: String::new(), rows };
        let svg = draw(&[section.clone(), section], "facts");
        assert_eq!(svg.matches("width=\"380.0\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("width=\"95.0\"").count(), 2, "{svg}");
        assert_eq!((svg.matches("a &lt; b").count(), svg.matches(">missing<").count()), (2, 2));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
