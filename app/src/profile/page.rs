//! A report as one page that needs nothing else: `page.html` with the report in it.

use super::report::Report;
use anyhow::Result;

const TEMPLATE: &str = include_str!("page.html");
/// Where the report goes.
const HERE: &str = "/*REPORT*/null";

pub fn of(r: &Report) -> Result<String> {
    // Inside a script nothing may look like its end.
    let json = serde_json::to_string(r)?.replace("</", "<\\/").replace("<!--", "<\\u0021--");
    Ok(TEMPLATE.replacen(HERE, &json, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_for_nothing_outside() {
        assert_eq!(TEMPLATE.matches(HERE).count(), 1);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            // The SVG namespace is a name, not an address; what starts with # is in the page.
            let text = TEMPLATE.replace("http://www.w3.org/2000/svg", "").replace("url(#", "");
            assert!(!text.contains(outside), "{outside}");
        }
    }
}
