//! Rows, bars, and the report in Markdown and JSON.

use std::fmt::Write;

use crate::stats::Series;

/// What the figures were taken on: names and values, in the order in which they are shown.
pub type Facts = Vec<(&'static str, String)>;

#[derive(Clone, Copy, PartialEq)]
pub enum Unit {
    Nanoseconds,
    Microseconds,
    Milliseconds,
    PerSecond,
    Kilobytes,
    Times,
    Percent,
    Count,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
            Self::PerSecond => "/s",
            Self::Kilobytes => "kB",
            Self::Times => "×",
            Self::Percent => "%",
            Self::Count => "",
        }
    }

    pub fn show(self, value: f64) -> String {
        let name = self.name();
        match self {
            Self::PerSecond if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
            Self::PerSecond => format!("{:.0} k/s", value / 1e3),
            Self::Count if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Count => format!("{value:.2}"),
            Self::Kilobytes => format!("{value:.0} {name}"),
            Self::Times if value < 10.0 => format!("{value:.2} {name}"),
            Self::Milliseconds | Self::Percent => format!("{value:.2} {name}"),
            _ if value >= 1000.0 => format!("{value:.0} {name}"),
            _ => format!("{value:.1} {name}"),
        }
    }
}

/// A limit that a figure must keep.
#[derive(Clone, Copy)]
pub enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn passes(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// How much of what is allowed has been used: 1 is the limit, less is better.
    fn used(self, value: f64) -> f64 {
        match self {
            // Of nothing, any is too much.
            Self::AtMost(0.0) => value * 2.0,
            Self::AtMost(limit) => value / limit,
            Self::AtLeast(limit) => limit / value,
        }
    }

    fn show(self, unit: Unit) -> String {
        let (sign, limit) = self.parts();
        let number = match unit {
            Unit::Milliseconds | Unit::Percent => format!("{limit} {}", unit.name()),
            _ => unit.show(limit),
        };
        format!("{sign} {number}")
    }

    fn parts(self) -> (&'static str, f64) {
        match self {
            Self::AtMost(limit) => ("≤", limit),
            Self::AtLeast(limit) => ("≥", limit),
        }
    }
}

/// One line of the report.
pub struct Row {
    pub name: String,
    pub series: Series,
    pub unit: Unit,
    pub bar: Option<Bar>,
    pub plotted: bool,
    pub note: String,
}

impl Row {
    pub fn new(name: impl Into<String>, series: &Series, unit: Unit) -> Self {
        let (name, series) = (name.into(), series.clone());
        Self { name, series, unit, bar: None, plotted: false, note: String::new() }
    }

    /// A row of the second table and of the plot.
    pub fn plotted(self) -> Self {
        Self { plotted: true, ..self }
    }

    pub fn bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }

    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    pub fn value(&self) -> f64 {
        self.series.median()
    }

    pub fn passes(&self) -> bool {
        self.bar.is_none_or(|bar| bar.passes(self.value()))
    }

    pub fn used(&self) -> Option<f64> {
        self.bar.map(|bar| bar.used(self.value()))
    }

    pub fn limit(&self) -> String {
        self.bar.map_or(String::new(), |bar| bar.show(self.unit))
    }

    fn range(&self) -> String {
        let (low, high) = (self.unit.show(self.series.low()), self.unit.show(self.series.high()));
        if low == high { low } else { format!("{low} to {high}") }
    }
}

pub struct Section {
    pub title: &'static str,
    pub how: String,
    pub rows: Vec<Row>,
}

pub struct Report {
    pub facts: Facts,
    pub quick: bool,
    pub sections: Vec<Section>,
}

impl Report {
    pub fn bars(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows).filter(|row| row.bar.is_some())
    }

    pub fn missed(&self) -> usize {
        self.bars().filter(|row| !row.passes()).count()
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from("# buflock bench\n\n");
        if self.quick {
            out.push_str("**A quick run: it shows that the bench works. Its figures mean nothing.**\n\n");
        }
        for (name, value) in &self.facts {
            put(&mut out, format_args!("* {name}: {value}\n"));
        }
        out.push_str(
            "\nEvery figure is the median over the rounds, and a ratio is the median of the rounds' \
             ratios. All parts take turns in every round. Lowest and highest round are given beside it.\n",
        );
        self.bar_table(&mut out);
        for section in &self.sections {
            figure_table(&mut out, section);
        }
        out
    }

    fn bar_table(&self, out: &mut String) {
        out.push_str("\n## Bars\n\n| bar | measured | rounds | limit | |\n|---|--:|--:|--:|---|\n");
        for row in self.bars() {
            let (value, range) = (row.unit.show(row.value()), row.range());
            let result = if row.passes() { "pass" } else { "**miss**" };
            put(out, format_args!("| {} | {value} | {range} | {} | {result} |\n", row.name, row.limit()));
        }
        let (total, missed) = (self.bars().count(), self.missed());
        put(out, format_args!("\n{} of {total} bars are kept.\n", total - missed));
    }

    pub fn json(&self) -> String {
        let facts: Vec<_> =
            self.facts.iter().map(|(name, value)| format!("    {}: {}", quote(name), quote(value))).collect();
        let sections: Vec<_> = self.sections.iter().map(json_section).collect();
        format!(
            "{{\n  \"machine\": {{\n{}\n  }},\n  \"quick\": {},\n  \"bars\": {},\n  \"missed\": {},\n  \
             \"sections\": [\n{}\n  ]\n}}\n",
            facts.join(",\n"),
            self.quick,
            self.bars().count(),
            self.missed(),
            sections.join(",\n")
        )
    }
}

fn figure_table(out: &mut String, section: &Section) {
    put(out, format_args!("\n## {}\n\n{}\n\n", section.title, section.how));
    out.push_str("| | median | rounds | |\n|---|--:|--:|---|\n");
    for row in section.rows.iter().filter(|row| row.plotted || row.bar.is_none()) {
        let (value, range) = (row.unit.show(row.value()), row.range());
        put(out, format_args!("| {} | {value} | {range} | {} |\n", row.name, row.note));
    }
}

fn json_section(section: &Section) -> String {
    let rows: Vec<_> = section.rows.iter().map(json_row).collect();
    format!(
        "    {{\n      \"title\": {},\n      \"how\": {},\n      \"rows\": [\n{}\n      ]\n    }}",
        quote(section.title),
        quote(&section.how),
        rows.join(",\n")
    )
}

fn json_row(row: &Row) -> String {
    let rounds: Vec<_> = row.series.rounds().iter().map(|&value| number(value)).collect();
    let bar = row.bar.map_or("null".to_owned(), |bar| {
        let (sign, limit) = bar.parts();
        let kind = if sign == "≤" { "at_most" } else { "at_least" };
        format!("{{\"{kind}\": {}, \"pass\": {}}}", number(limit), row.passes())
    });
    format!(
        "        {{\"name\": {}, \"unit\": {}, \"median\": {}, \"rounds\": [{}], \"bar\": {bar}, \"note\": {}}}",
        quote(&row.name),
        quote(row.unit.name()),
        number(row.value()),
        rounds.join(", "),
        quote(&row.note)
    )
}

/// JSON has no infinity and no NaN.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value}") } else { "null".to_owned() }
}

fn quote(text: &str) -> String {
    let mut out = String::from('"');
    for symbol in text.chars() {
        match symbol {
            '"' | '\\' => out.extend(['\\', symbol]),
            control if control < ' ' => put(&mut out, format_args!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Writing to a String cannot fail.
pub fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
