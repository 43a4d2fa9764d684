//! Curves of miss ratios over room, as SVG: a line for each trace, policy and count of shards.

use std::collections::BTreeMap;

use anyhow::anyhow;
use plotters::prelude::*;

use super::rows::Row;

/// Width and height of the drawing, in its own units.
const EXTENT: (u32, u32) = (960, 600);

/// The lines, in order of their first row: a label and points of room and miss ratio.
type Curves = Vec<(String, Vec<(f64, f64)>)>;

/// Draws the curves of `rows`.
pub(super) fn miss_ratio_curves(rows: &[Row]) -> anyhow::Result<String> {
    let mut svg = String::new();
    draw(&curves(rows), SVGBackend::with_string(&mut svg, EXTENT))
        .map_err(|cause| anyhow!("{cause}"))?;
    Ok(svg)
}

fn curves(rows: &[Row]) -> Curves {
    let has_many = |key: fn(&Row) -> String| {
        let first = rows.first().map(key);
        rows.iter().any(|row| Some(key(row)) != first)
    };
    let (traces, shards) = (
        has_many(|row| row.trace.clone()),
        has_many(|row| row.shards.to_string()),
    );
    let mut place_of = BTreeMap::new();
    let mut curves = Curves::new();
    for row in rows {
        let mut label = row.policy.name().to_owned();
        if traces {
            label = format!("{}: {label}", row.trace);
        }
        if shards {
            label = format!("{label}, {} shards", row.shards);
        }
        let next = curves.len();
        let place = *place_of.entry(label.clone()).or_insert(next);
        if place == next {
            curves.push((label, Vec::new()));
        }
        #[expect(clippy::cast_precision_loss, reason = "a place on paper")]
        curves[place].1.push((
            row.capacity_blocks as f64,
            row.outcome.hits.misses() as f64 / row.outcome.hits.accesses.max(1) as f64,
        ));
    }
    for (_, points) in &mut curves {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    curves
}

fn draw(curves: &Curves, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let root = backend.into_drawing_area();
    root.fill(&WHITE)?;
    let rooms = || {
        curves
            .iter()
            .flat_map(|(_, points)| points)
            .map(|point| point.0)
    };
    let (least, most) = (
        rooms().fold(f64::INFINITY, f64::min),
        rooms().fold(1.0, f64::max),
    );
    // One room alone gives a line no length: some paper is put around it.
    let (from, to) = (least / 1.1, most * 1.1);
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .caption("Miss ratio by room", ("sans-serif", 20))
        .build_cartesian_2d((from..to).log_scale(), 0.0..1.0)?;
    chart
        .configure_mesh()
        .x_desc("blocks")
        .y_desc("miss ratio")
        .x_label_formatter(&|room| format!("{room:.0}"))
        .draw()?;
    for (at, (label, points)) in curves.iter().enumerate() {
        let style = colour(at).stroke_width(2);
        let line = LineSeries::new(points.iter().copied(), style).point_size(3);
        chart
            .draw_series(line)?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

/// Colours that stay apart from their neighbours: steps of the golden section round the circle.
fn colour(at: usize) -> HSLColor {
    #[expect(clippy::cast_precision_loss, reason = "lines are few")]
    let turn = (at as f64 * 0.618_034).fract();
    HSLColor(turn, 0.75, 0.4)
}
