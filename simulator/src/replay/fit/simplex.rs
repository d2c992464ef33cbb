//! Minimises a function of a few variables without derivatives: the simplex of Nelder and Mead (1965).
//!
//! Restarted once from its own result, since a simplex may collapse early. Deterministic, with bounded evaluations.

/// Searches from `start`; the best point found.
pub(super) fn minimise(f: impl Fn(&[f64]) -> f64, start: &[f64]) -> Vec<f64> {
    let once = descend(&f, start, FIRST_STEP);
    descend(&f, &once, SECOND_STEP)
}

type Vertex = (Vec<f64>, f64);

fn descend(f: &impl Fn(&[f64]) -> f64, start: &[f64], step: f64) -> Vec<f64> {
    let vertex = |point: Vec<f64>| {
        let value = f(&point);
        (point, if value.is_finite() { value } else { f64::MAX })
    };
    let moved = |axis: usize| {
        let mut point = start.to_vec();
        point[axis] += step;
        point
    };
    let mut simplex: Vec<Vertex> = vec![vertex(start.to_vec())];
    simplex.extend((0..start.len()).map(|axis| vertex(moved(axis))));
    for _ in 0..MAX_STEPS {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (best, worst) = (simplex[0].clone(), simplex[start.len()].clone());
        if worst.1 - best.1 < FLAT {
            break;
        }
        let centre = centre(&simplex[..start.len()]);
        let along = |share: f64| vertex(between(&centre, &worst.0, share));
        let reflected = along(-1.0);
        let next = if reflected.1 < best.1 {
            let expanded = along(-2.0);
            if expanded.1 < reflected.1 { expanded } else { reflected }
        } else if reflected.1 < simplex[start.len() - 1].1 {
            reflected
        } else {
            let contracted = along(if reflected.1 < worst.1 { -0.5 } else { 0.5 });
            if contracted.1 >= worst.1.min(reflected.1) {
                simplex.iter_mut().skip(1).for_each(|v| *v = vertex(between(&best.0, &v.0, 0.5)));
                continue;
            }
            contracted
        };
        simplex[start.len()] = next;
    }
    simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
    simplex.swap_remove(0).0
}

fn centre(simplex: &[Vertex]) -> Vec<f64> {
    let axes = simplex.first().map_or(0, |(point, _)| point.len());
    let mean = |axis: usize| simplex.iter().map(|(point, _)| point[axis]).sum::<f64>() / simplex.len() as f64;
    (0..axes).map(mean).collect()
}

/// The point at `share` of the way from one to another.
fn between(from: &[f64], to: &[f64], share: f64) -> Vec<f64> {
    from.iter().zip(to).map(|(from, to)| from + share * (to - from)).collect()
}

/// A factor of two in a price.
const FIRST_STEP: f64 = 0.7;
const SECOND_STEP: f64 = 0.3;
const MAX_STEPS: usize = 400;
const FLAT: f64 = 1e-7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_bottom_of_a_bent_valley() {
        let banana = |p: &[f64]| (1.0 - p[0]).powi(2) + 100.0 * (p[1] - p[0] * p[0]).powi(2);
        let found = minimise(banana, &[-1.2, 1.0]);
        assert!((found[0] - 1.0).abs() < 0.01 && (found[1] - 1.0).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn survives_what_has_no_value() {
        let cliff = |p: &[f64]| if p[0] < 0.0 { f64::NAN } else { p[0] };
        assert!(minimise(cliff, &[3.0])[0] < 0.1);
    }
}
