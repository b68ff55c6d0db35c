//! The report as a picture: horizontal bars in SVG, one panel for each section.

use crate::report::{Report, Row, Section, Unit, put};

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 24.0;
/// Where bars begin and end; names stand left of it, values right.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 780.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;

const OURS: &str = "#1f6fb2";
const OTHERS: &str = "#b3bfcc";
const PASS: &str = "#2e8b57";
const MISS: &str = "#c8372d";

struct Item<'r> {
    name: &'r str,
    value: f64,
    text: String,
    color: &'static str,
}

struct Panel<'r> {
    title: String,
    items: Vec<Item<'r>>,
    scale: Scale,
    /// Where a dark line is drawn over the bars.
    mark: Option<f64>,
}

pub fn svg(report: &Report) -> String {
    let mut panels = vec![bar_panel(report)];
    panels.extend(report.sections.iter().filter_map(figure_panel));
    let mut body = String::new();
    let mut y = MARGIN;
    y = heading(&mut body, report, y);
    for panel in &panels {
        y = panel.draw(&mut body, y);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#1d2733\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn heading(out: &mut String, report: &Report, y: f64) -> f64 {
    let quick = if report.quick { ": a quick run, its figures mean nothing" } else { "" };
    put(
        out,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"20\" font-weight=\"bold\">buflock bench{quick}</text>\n",
            y + 14.0
        ),
    );
    let fact = |name| report.facts.iter().find(|fact| fact.0 == name).map_or("", |fact| &*fact.1);
    let line = format!("{}; {}; {}", fact("CPUs"), fact("kernel"), fact("date"));
    put(
        out,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"12\" fill=\"#5a6675\">{}</text>\n",
            y + 36.0,
            escape(&line)
        ),
    );
    y + 60.0
}

/// All bars on one scale: how much of the limit is used.
fn bar_panel(report: &Report) -> Panel<'_> {
    let items: Vec<_> = report
        .bars()
        .map(|row| Item {
            name: &row.name,
            value: row.used().unwrap_or(0.0) * 100.0,
            text: format!("{} ({})", row.unit.show(row.value()), row.limit()),
            color: if row.passes() { PASS } else { MISS },
        })
        .collect();
    let most = items.iter().map(|item| item.value).fold(100.0, f64::max);
    let title = "Bars: share of the limit that is used, in %; shorter is better, 100 is the limit";
    Panel { title: title.to_owned(), items, scale: Scale::Linear { top: most.min(200.0) * 1.05 }, mark: Some(100.0) }
}

/// The plotted rows of a section, which have one unit; nothing when there are none.
fn figure_panel(section: &Section) -> Option<Panel<'_>> {
    let rows: Vec<&Row> = section.rows.iter().filter(|row| row.plotted).collect();
    let unit = rows.first()?.unit;
    let items: Vec<_> = rows
        .iter()
        .map(|row| Item {
            name: &row.name,
            value: row.value(),
            text: unit.show(row.value()),
            color: if row.name.contains("buflock") { OURS } else { OTHERS },
        })
        .collect();
    let scale = Scale::fitting(&items);
    let better = if unit == Unit::PerSecond { "longer" } else { "shorter" };
    let kind = if matches!(scale, Scale::Log { .. }) { ", log scale" } else { "" };
    let per = if unit == Unit::PerSecond { "pairs per second" } else { unit.name() };
    Some(Panel { title: format!("{}: {per}{kind}; {better} is better", section.title), items, scale, mark: None })
}

enum Scale {
    Linear { top: f64 },
    Log { bottom: f64, top: f64 },
}

impl Scale {
    /// Logarithmic where the shortest bar could not be seen otherwise.
    fn fitting(items: &[Item<'_>]) -> Self {
        let usable = || items.iter().map(|item| item.value).filter(|value| value.is_finite());
        let low = usable().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
        let high = usable().fold(0.0, f64::max);
        if high > 20.0 * low {
            let bottom = 10_f64.powf((low / 1.5).log10().floor());
            Self::Log { bottom, top: high * 1.1 }
        } else {
            Self::Linear { top: high.max(f64::MIN_POSITIVE) * 1.05 }
        }
    }

    /// Left to right, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { top } => value / top,
            Self::Log { bottom, top } => (value / bottom).log10() / (top / bottom).log10(),
        };
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { top } => {
                let step = round_step(top / 6.0);
                (0..=10).map(|tick| f64::from(tick) * step).filter(|&tick| tick <= top).collect()
            }
            Self::Log { bottom, top } => {
                (0..12).map(|tick| bottom * 10_f64.powi(tick)).filter(|&tick| tick <= top).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|&step| step >= least * 0.999).unwrap_or(least)
}

impl Panel<'_> {
    /// Returns where the next panel begins.
    fn draw(&self, out: &mut String, y: f64) -> f64 {
        put(
            out,
            format_args!(
                "<text x=\"{MARGIN}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
                y + 14.0,
                escape(&self.title)
            ),
        );
        let top = y + 30.0;
        let bottom = top + LINE * self.items.len() as f64;
        for tick in self.scale.ticks() {
            let x = x_of(self.scale.place(tick));
            put(
                out,
                format_args!(
                    "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#dde3ea\"/>\n\
                 <text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"11\" fill=\"#5a6675\" text-anchor=\"middle\">{}</text>\n",
                    bottom + 15.0,
                    short(tick)
                ),
            );
        }
        for (index, item) in self.items.iter().enumerate() {
            self.item(out, item, top + LINE * index as f64);
        }
        if let Some(mark) = self.mark {
            let x = x_of(self.scale.place(mark));
            put(
                out,
                format_args!(
                    "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#1d2733\" stroke-width=\"1.5\"/>\n"
                ),
            );
        }
        bottom + 46.0
    }

    fn item(&self, out: &mut String, item: &Item<'_>, y: f64) {
        let (text_y, bar_y) = (y + LINE / 2.0 + 4.5, y + (LINE - BAR) / 2.0);
        let end = x_of(self.scale.place(item.value));
        // Even nothing can be seen as nothing.
        let width = (end - LEFT).max(1.0);
        put(
            out,
            format_args!(
                "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{bar_y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{}\"/>\n\
             <text x=\"{:.1}\" y=\"{text_y:.1}\" font-size=\"12\">{}</text>\n",
                LEFT - 8.0,
                escape(item.name),
                item.color,
                RIGHT + 10.0,
                escape(&item.text)
            ),
        );
    }
}

fn x_of(place: f64) -> f64 {
    LEFT + place * (RIGHT - LEFT)
}

/// A tick's number without needless digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e4 => format!("{} k", v / 1e3),
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{}", (v * 1e4).round() / 1e4),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
