//! Enough of a shell's grammar to find the commands in a document's examples.

/// Splits a line into its simple commands, each a list of words without quotes.
///
/// `|`, `||`, `&&`, `;`, `&` and parentheses end a command; a redirection and its target are left out, and so is all
/// behind a `#` that begins a word. Words keep `$NAME` and `$(…)` as they stand.
pub fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut letters = line.chars().peekable();
    let mut is_redirected = false;
    while let Some(&letter) = letters.peek() {
        match letter {
            ' ' | '\t' => {
                letters.next();
            }
            '#' => break,
            '|' | '&' | ';' | '(' | ')' => {
                letters.next();
                commands.push(std::mem::take(&mut words));
            }
            '<' | '>' => {
                letters.next();
                // The digit in `2>` is the number of a stream, not a word.
                if words.last().is_some_and(|word| word == "1" || word == "2") {
                    words.pop();
                }
                while letters.next_if(|c| matches!(c, '<' | '>' | '&')).is_some() {}
                is_redirected = true;
            }
            _ => {
                let word = word(&mut letters);
                if std::mem::take(&mut is_redirected) {
                    continue;
                }
                words.push(word);
            }
        }
    }
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

fn word(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut word = String::new();
    let mut quote = None;
    let mut depth = 0;
    while let Some(&letter) = letters.peek() {
        match (quote, letter) {
            (None, ' ' | '\t' | '|' | '&' | ';' | '<' | '>') if depth == 0 => break,
            (None, ')') if depth == 0 => break,
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, '(') => {
                depth += 1;
                word.push(letter);
            }
            (None, ')') => {
                depth -= 1;
                word.push(letter);
            }
            (None | Some('"'), '\\') => {
                letters.next();
                word.extend(letters.peek());
            }
            _ => word.push(letter),
        }
        letters.next();
    }
    word
}

/// Returns the arguments of a command if it calls `program`, whatever variables it sets before.
pub fn arguments<'a>(words: &'a [String], program: &str) -> Option<&'a [String]> {
    let first = words.iter().position(|word| !is_assignment(word))?;
    (words[first] == program).then(|| &words[first + 1..])
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_taken_apart() {
        let found =
            commands("A=1 percale ls 'percale:/a b' --sort size | head -n 3 && percale du -h 2> log # all");
        let expected: Vec<Vec<&str>> = vec![
            vec!["A=1", "percale", "ls", "percale:/a b", "--sort", "size"],
            vec!["head", "-n", "3"],
            vec!["percale", "du", "-h"],
        ];
        assert_eq!(found, expected);
        assert_eq!(arguments(&found[0], "percale").map(<[_]>::len), Some(4));
        assert_eq!(arguments(&found[1], "percale"), None);
    }

    #[test]
    fn substitutions_and_escapes_stay_in_their_word() {
        let found = commands(r#"percale cp $(cat list | head -1) "a \"b\"" c\ d"#);
        assert_eq!(found, [["percale", "cp", "$(cat list | head -1)", "a \"b\"", "c d"]]);
    }
}
