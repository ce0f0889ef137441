//! Pieces of kernel text: named parts of a file, named holes, and lines that are repeated.
//!
//! A `.wgsl` file may have parts of which a kernel takes some. `//# piece NAME` begins one, which goes on to the
//! next such line. `$name` is a hole that [`fill`] fills.
//!
//! Cooperative matrices cannot lie in arrays: every one is a variable of its own, so loops over them are
//! written out. In a `.wgsl` file
//!
//! ```wgsl
//! //# for j in TILES
//! var sum$j = coop_mat16x16<f32, C>();
//! //# end
//! ```
//!
//! stands for its body once for each `j` below the number that `TILES` is given, with `$j` replaced.
//! Variables have one letter; loops may lie in loops. A bound may also be a number.

/// The text with all loops written out.
///
/// A bound without a value and a loop without an end are mistakes of our own files, which a test finds:
/// they stay in the text, and no compiler accepts them.
pub(super) fn unroll(text: &str, bounds: &[(&str, usize)]) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    expand(&lines, bounds, &mut Vec::new(), &mut out);
    out
}

/// Writes lines with the variables of the loops around them.
fn expand(
    lines: &[&str],
    bounds: &[(&str, usize)],
    variables: &mut Vec<(char, usize)>,
    out: &mut String,
) {
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        let Some((variable, bound)) = header(line, bounds) else {
            out.push_str(&substitute(line, variables));
            out.push('\n');
            continue;
        };
        let body = &lines[at..];
        let len = end_of(body);
        for value in 0..bound {
            variables.push((variable, value));
            expand(&body[..len], bounds, variables, out);
            variables.pop();
        }
        at += len + 1;
    }
}

/// Variable and bound of a line that begins a loop.
fn header(line: &str, bounds: &[(&str, usize)]) -> Option<(char, usize)> {
    let rest = line.trim().strip_prefix("//# for ")?;
    let (variable, bound) = rest.split_once(" in ")?;
    let given = bounds.iter().find(|(name, _)| *name == bound).map(|&(_, value)| value);
    Some((variable.chars().next()?, given.or_else(|| bound.parse().ok())?))
}

/// Lines before the end of the loop whose body begins here.
fn end_of(lines: &[&str]) -> usize {
    let mut open = 0;
    for (index, line) in lines.iter().enumerate() {
        let line = line.trim();
        if line.starts_with("//# for ") {
            open += 1;
        } else if line == "//# end" {
            if open == 0 {
                return index;
            }
            open -= 1;
        }
    }
    lines.len()
}

fn substitute(line: &str, variables: &[(char, usize)]) -> String {
    let mut line = line.to_owned();
    for (variable, value) in variables {
        line = line.replace(&format!("${variable}"), &value.to_string());
    }
    line
}

/// The lines of a file in front of its first piece.
pub(super) fn front(text: &str) -> &str {
    text.find(MARK).map_or(text, |at| &text[..at])
}

/// Begins a piece of a file.
const MARK: &str = "//# piece ";

/// The lines of a piece of a file; `None` if it has no such piece.
pub(super) fn piece<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let mut start = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(found) = line.strip_prefix(MARK) {
            if let Some(start) = start {
                return text.get(start..at);
            }
            if found.trim_end() == name {
                start = Some(at + line.len());
            }
        }
        at += line.len();
    }
    text.get(start?..)
}

/// The text with its holes filled: `$name` by the value of that name.
pub(super) fn fill(text: &str, holes: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (name, value) in holes {
        text = text.replace(&format!("${name}"), value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_the_next_begins() {
        let text = "// front\n//# piece a\nx\ny\n//# piece b c\nz\n";
        assert_eq!(piece(text, "a"), Some("x\ny\n"));
        assert_eq!(piece(text, "b c"), Some("z\n"));
        assert_eq!(piece(text, "b"), None);
        assert_eq!(fill("get_$operand($operand)", &[("operand", "w")]), "get_w(w)");
    }

    #[test]
    fn loops_are_written_out_with_their_variables() {
        let text = "a\n//# for i in N\nx$i\n  //# for j in 2\n  y$i$j\n  //# end\n//# end\nb";
        assert_eq!(unroll(text, &[("N", 2)]), "a\nx0\n  y00\n  y01\nx1\n  y10\n  y11\nb\n");
        assert_eq!(unroll(text, &[("N", 0)]), "a\nb\n");
    }

    #[test]
    fn an_unknown_bound_stays_in_the_text() {
        assert!(unroll("//# for i in N\n$i\n//# end", &[]).contains("$i"));
    }
}
