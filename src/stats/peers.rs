//! A figure of all members of a group, for what is usual among the others of each.

/// Figures of a group: sorted once, not once for each member.
#[derive(Debug)]
pub struct Peers(Vec<f64>);

impl Peers {
    /// Of the members that have the figure.
    pub fn of(figures: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Self(sorted)
    }

    /// The lower median of the others' figures, for a member whose own is among them, if it has one. With half of a group
    /// off, the other half is still the measure.
    pub fn beside(&self, own: Option<f64>) -> Option<f64> {
        let Some(own) = own else {
            let middle = self.0.len().checked_sub(1)? / 2;
            return self.0.get(middle).copied();
        };
        let middle = self.0.len().checked_sub(2)? / 2;
        let place = self.0.partition_point(|figure| figure.total_cmp(&own).is_lt());
        self.0.get(if middle < place { middle } else { middle + 1 }).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::lower_quantile;

    #[test]
    fn peers_are_the_lower_median_of_the_others() {
        for size in 1..8_usize {
            let figures: Vec<f64> = (0..size).map(|at| ((at * 5) % 7 / 2) as f64).collect();
            let peers = Peers::of(figures.iter().copied());
            for at in 0..size {
                let mut others = figures.clone();
                let own = others.swap_remove(at);
                assert_eq!(peers.beside(Some(own)), lower_quantile(&mut others, 0.5), "{at} of {figures:?}");
            }
            assert_eq!(peers.beside(None), lower_quantile(&mut figures.clone(), 0.5));
        }
        assert_eq!(Peers::of(std::iter::empty()).beside(None), None);
    }
}
