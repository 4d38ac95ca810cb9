//! Reads what the checks need from a Markdown document: links, anchors, code.

use std::collections::{HashMap, HashSet};

use pulldown_cmark::{BrokenLink, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

/// One document, taken apart.
#[derive(Default)]
pub struct Document {
    /// Every link and image: line and destination.
    pub links: Vec<(usize, String)>,
    /// Links by reference whose reference is not defined: line and reference.
    pub undefined: Vec<(usize, String)>,
    /// What a `#fragment` may name.
    pub anchors: HashSet<String>,
    /// Fenced code blocks.
    pub fences: Vec<Fence>,
    /// Code within a line: line and text.
    pub inline: Vec<(usize, String)>,
}

/// One fenced code block.
pub struct Fence {
    /// The line of its first line of code.
    pub line: usize,
    /// The first word behind the fence.
    pub language: String,
    /// The further words behind the fence.
    pub tags: Vec<String>,
    /// The code.
    pub code: String,
}

impl Document {
    /// Parses a document in GitHub's flavour.
    pub fn parse(text: &str) -> Self {
        let lines = LineIndex::new(text);
        let mut undefined = Vec::new();
        let on_broken = |link: BrokenLink<'_>| {
            // `[x]` alone is ordinary text far more often than a forgotten link.
            if matches!(link.link_type, LinkType::Reference | LinkType::Collapsed) {
                undefined.push((lines.line(link.span.start), link.reference.to_string()));
            }
            None
        };
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_TASKLISTS;
        let mut document = Self::default();
        let mut slugs = HashMap::new();
        let mut heading: Option<String> = None;
        let mut fence: Option<Fence> = None;
        let parser = Parser::new_with_broken_link_callback(text, options, Some(on_broken));
        for (event, range) in parser.into_offset_iter() {
            let line = lines.line(range.start);
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    document.links.push((line, dest_url.to_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    document.anchors.insert(unique(&mut slugs, slug(&heading.take().unwrap_or_default())));
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let mut words = info.split_whitespace().map(str::to_owned);
                    let language = words.next().unwrap_or_default();
                    fence =
                        Some(Fence { line: line + 1, language, tags: words.collect(), code: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => document.fences.extend(fence.take()),
                Event::Text(words) => {
                    if let Some(fence) = &mut fence {
                        fence.code.push_str(&words);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::Code(code) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&code);
                    }
                    document.inline.push((line, code.to_string()));
                }
                Event::Html(html) | Event::InlineHtml(html) => document.anchors.extend(html_anchors(&html)),
                _ => {}
            }
        }
        document.undefined = undefined;
        document
    }
}

/// Makes the anchor of a heading as GitHub does: letters, digits, `-` and `_` stay, spaces become `-`.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Numbers repeated anchors: `a`, `a-1`, `a-2`.
fn unique(seen: &mut HashMap<String, usize>, slug: String) -> String {
    let count = seen.entry(slug.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
}

/// Finds `id="x"` and `name="x"` in a piece of HTML.
fn html_anchors(html: &str) -> Vec<String> {
    let values = |attribute| html.split(attribute).skip(1).filter_map(|rest: &str| rest.split('"').next());
    values(" id=\"").chain(values(" name=\"")).map(str::to_owned).collect()
}

/// Turns byte offsets into line numbers.
struct LineIndex {
    ends: Vec<usize>,
}

impl LineIndex {
    fn new(text: &str) -> Self {
        Self { ends: text.match_indices('\n').map(|(offset, _)| offset).collect() }
    }

    fn line(&self, offset: usize) -> usize {
        self.ends.partition_point(|end| *end < offset) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_follow_github() {
        let document = Document::parse("# Exit codes & `percale`\n\n## A\n\n## A\n\n<a id=\"old\"></a>\n");
        for anchor in ["exit-codes--percale", "a", "a-1", "old"] {
            assert!(document.anchors.contains(anchor), "{anchor} is missing from {:?}", document.anchors);
        }
    }

    #[test]
    fn a_fence_knows_its_line_and_tags() {
        let document = Document::parse("text\n\n```sh no-run\npercale ls\n```\n");
        let fence = &document.fences[0];
        assert_eq!((fence.line, fence.language.as_str()), (4, "sh"));
        assert_eq!(fence.tags, ["no-run"]);
        assert_eq!(fence.code, "percale ls\n");
    }

    #[test]
    fn links_by_reference_are_resolved_or_reported() {
        let document = Document::parse("[a][b] and [c][d] and [e]\n\n[b]: x.md#y\n");
        assert_eq!(document.links, [(1, "x.md#y".to_owned())]);
        assert_eq!(document.undefined, [(1, "d".to_owned())]);
    }
}
