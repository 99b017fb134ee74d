//! Results as pictures: one SVG for each workload with more than one point.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::measure::Outcome;
use crate::subject::Subject;

/// The size of one panel.
const PANEL: (u32, u32) = (480, 360);

/// Draws `outcome` to `file`, a panel for each metric: both axes logarithmic, a line for each
/// subject. Draws nothing when there is only one point.
pub fn draw(outcome: &Outcome, disk: &str, file: &Path) -> Result<bool, String> {
    if outcome.points.len() < 2 {
        return Ok(false);
    }
    let metrics = outcome.workload.metrics;
    let size = (PANEL.0 * metrics.len() as u32, PANEL.1 + 30);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let title = format!("{}: {}", outcome.workload.name, outcome.workload.title);
    let area = area.titled(&title, ("sans-serif", 15)).map_err(|error| error.to_string())?;
    for (panel, (metric, unit)) in area.split_evenly((1, metrics.len())).iter().zip(metrics) {
        let label = format!("{metric}, {}", unit.sign());
        draw_panel(outcome, disk, metric, &label, panel).map_err(|error| error.to_string())?;
    }
    area.present().map_err(|error| error.to_string())?;
    Ok(true)
}

fn colour(subject: Subject) -> RGBColor {
    match subject {
        Subject::AtollMmap | Subject::AtollServer | Subject::Spsc => RGBColor(214, 69, 65),
        Subject::AtollPread | Subject::Scq => RGBColor(230, 145, 56),
        Subject::AtollRam | Subject::AtollFuse => RGBColor(142, 68, 173),
        Subject::AtollAlone => RGBColor(22, 160, 133),
        Subject::AtollReadOnly => RGBColor(127, 140, 141),
        Subject::Disk | Subject::Locked => RGBColor(52, 101, 164),
        Subject::Tmpfs => RGBColor(88, 142, 49),
    }
}

/// A picture's error, whatever drew it.
type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw_panel(
    outcome: &Outcome,
    disk: &str,
    metric: &str,
    label: &str,
    panel: &DrawingArea<SVGBackend<'_>, Shift>,
) -> Drawn {
    let line = |subject: Subject| -> Vec<(f64, f64)> {
        let points = outcome.points.iter();
        let at = |point: &crate::measure::Point| {
            // A logarithm has no place for zero and below.
            let median = point.summary(subject, metric)?.median;
            Some((point.point as f64, median.max(1e-3)))
        };
        points.filter_map(at).collect()
    };
    let values: Vec<f64> =
        Subject::ALL.into_iter().flat_map(line).map(|(_, value)| value).collect();
    if values.is_empty() {
        return Ok(());
    }
    let (low, high) = (
        values.iter().copied().fold(f64::INFINITY, f64::min) / 1.5,
        values.iter().copied().fold(0.0, f64::max) * 1.5,
    );
    let first = outcome.points[0].point as f64;
    let last = outcome.points[outcome.points.len() - 1].point as f64;
    let mut chart = ChartBuilder::on(panel)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(62)
        .build_cartesian_2d((first..last).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(outcome.workload.axis)
        .y_desc(label)
        .light_line_style(RGBColor(240, 240, 240))
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for subject in Subject::ALL {
        let (points, colour) = (line(subject), colour(subject));
        if points.is_empty() {
            continue;
        }
        let name = if subject == Subject::Disk { disk } else { subject.key() };
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}

/// A number for an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", trimmed(v / 1e6)),
        v if v >= 1e3 => format!("{}k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_numbers() {
        assert_eq!(short(65536.0), "65.54k");
        assert_eq!(short(1e6), "1M");
        assert_eq!(short(100.0), "100");
        assert_eq!(short(0.1), "0.1");
    }
}
