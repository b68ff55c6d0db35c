//! The JSON object that stats answer: flat, but for the list of notices.

use std::fmt::Write;

/// An object under construction.
#[derive(Debug, Default)]
pub struct Object {
    members: String,
    notices: String,
}

impl Object {
    /// A number.
    pub fn number(&mut self, name: &str, value: u64) {
        self.member(name, &value.to_string());
    }

    /// A truth value.
    pub fn flag(&mut self, name: &str, value: bool) {
        self.member(name, if value { "true" } else { "false" });
    }

    /// A text.
    pub fn text(&mut self, name: &str, value: &str) {
        self.member(name, &quoted(value));
    }

    /// Something worth saying once. Bindings and the command print new ones.
    pub fn notice(&mut self, text: &str) {
        separate(&mut self.notices);
        self.notices.push_str(&quoted(text));
    }

    fn member(&mut self, name: &str, value: &str) {
        separate(&mut self.members);
        let _ = write!(self.members, "{}:{value}", quoted(name));
    }

    /// The object as text.
    pub fn finish(mut self) -> String {
        let notices = format!("[{}]", self.notices);
        self.member("notices", &notices);
        format!("{{{}}}", self.members)
    }
}

fn separate(list: &mut String) {
    if !list.is_empty() {
        list.push(',');
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if u32::from(char) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(char));
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json() {
        let mut object = Object::default();
        object.number("a", 1);
        object.text("b\"", "\\ \n \u{e9}");
        object.flag("c", true);
        object.notice("x");
        object.notice("y");
        let want = r#"{"a":1,"b\"":"\\ \u000a é","c":true,"notices":["x","y"]}"#;
        assert_eq!(object.finish(), want);
        assert_eq!(Object::default().finish(), r#"{"notices":[]}"#);
    }
}
