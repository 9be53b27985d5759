//! The commands that the documents show, run as they stand.
//!
//! A fenced `sh` block with the line `<!-- ci -->` right above it is run from the root of the workspace; a block without
//! the mark is for people only. `cargo xtask test` itself cannot be marked: it would run itself.

use anyhow::{Result, bail, ensure};

const MARK: &str = "<!-- ci -->";

/// One marked block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Line number of the opening fence, from 1.
    pub(crate) line: usize,
    pub(crate) script: String,
}

/// The marked blocks of a Markdown text, in order. A mark that marks nothing and a fence without an end are errors.
pub(crate) fn blocks(file: &str, text: &str) -> Result<Vec<Block>> {
    let mut found = Vec::new();
    let mut marked_at = None;
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
    while let Some((number, line)) = lines.next() {
        if line.trim() == MARK {
            marked_at = Some(number);
        } else if line.starts_with("```") {
            let is_sh = line.trim_end() == "```sh";
            let mut body = String::new();
            loop {
                match lines.next() {
                    Some((_, l)) if l.trim_end() == "```" => break,
                    Some((_, l)) => {
                        body.push_str(l);
                        body.push('\n');
                    }
                    None => bail!("{file}:{number}: this block has no end"),
                }
            }
            if let Some(mark) = marked_at.take() {
                ensure!(is_sh, "{file}:{mark}: the mark must stand right above a ```sh block");
                ensure!(
                    !body.contains("xtask test"),
                    "{file}:{number}: this block is marked and runs the tests, which would run it again; take the mark off"
                );
                found.push(Block { line: number, script: body });
            }
        } else if let Some(mark) = marked_at {
            bail!("{file}:{mark}: the mark must stand right above a ```sh block");
        }
    }
    match marked_at {
        Some(mark) => bail!("{file}:{mark}: the mark must stand right above a ```sh block"),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_sh_blocks_are_taken_with_their_line() {
        let text = "# A\n```sh\nno\n```\n<!-- ci -->\n```sh\nyes \\\n  --flag\nsecond\n```\n```text\n<!-- ci -->\n```\n";
        let expected = Block { line: 6, script: "yes \\\n  --flag\nsecond\n".into() };
        assert_eq!(blocks("R.md", text).expect("well formed"), [expected]);
    }

    #[test]
    fn a_mark_over_anything_else_is_refused_with_its_place() {
        for text in ["x\n<!-- ci -->\ntext\n", "x\n<!-- ci -->\n```json\n{}\n```\n", "x\n<!-- ci -->\n"] {
            let error = blocks("R.md", text).expect_err("misplaced").to_string();
            assert!(error.starts_with("R.md:2:"), "{error}");
        }
    }

    #[test]
    fn a_block_without_an_end_is_refused() {
        assert!(blocks("R.md", "```sh\nls\n").expect_err("open").to_string().contains("no end"));
    }

    #[test]
    fn the_test_command_cannot_be_marked() {
        let error = blocks("R.md", "<!-- ci -->\n```sh\ncargo xtask test\n```\n").expect_err("would recurse");
        assert!(error.to_string().contains("take the mark off"), "{error}");
    }
}
