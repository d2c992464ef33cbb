"""Judges one cell of the matrix: which bounds a policy misses, against the best of all policies and against round robin.

A cell is `{policy: [run of each seed]}`. A policy holds the cell when
- its violations are at most the best policy's and the larger of 0.3 points and 10 % of them;
- TTFT p50, p90, p99 and TPOT p99 are each at most 1.1 times the smallest among the policies that hold the first bound
  (or, as the milder reading, those of the one among them that is best over all four);
- it is in none of these more than 5 % worse than round robin (violations: the larger of 0.3 points and 5 %).
Figures are means over the seeds. Each bound is widened by its noise, half a range over the seeds, which is about one
standard error for two or three: that of the quotient of the two policies (times) or their difference (violations), at most
that of the better one alone. A policy that is erratic where another is steady gets nothing for it.
"""
import dataclasses
import math

TIMES = ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "tpot_p99_s")
POINTS = 0.003


@dataclasses.dataclass(frozen=True)
class Miss:
    """A bound that a policy misses."""

    figure: str
    value: float
    # The widened bound, and the policy that it is made of.
    bound: float
    of: str


def mean(runs, figure):
    return sum(run[figure] for run in runs) / len(runs)


def half_range(values):
    values = list(values)
    return (max(values) - min(values)) / 2


def late(cell, policy, of, share):
    """The missed bound on violations, if it is missed."""
    own, best = mean(cell[policy], "violations"), mean(cell[of], "violations")
    noise = min(half_range(a["violations"] - b["violations"] for a, b in zip(cell[policy], cell[of])),
                half_range(run["violations"] for run in cell[of]))
    bound = best + max(POINTS, share * best) + noise
    return [Miss("violations", own, bound, of)] if own > bound else []


def slow(cell, policy, of, figure, factor):
    """The missed bound on a time, if it is missed."""
    own, best = mean(cell[policy], figure), mean(cell[of], figure)
    if best == 0:
        return []
    noise = min(half_range(a[figure] / max(b[figure], 1e-9) for a, b in zip(cell[policy], cell[of])),
                half_range(run[figure] / best for run in cell[of]))
    bound = best * (factor + noise)
    return [Miss(figure, own, bound, of)] if own > bound else []


def misses(cell, is_mild=False):
    """The missed bounds of each policy; none where it holds the cell."""
    least = min(cell, key=lambda policy: mean(cell[policy], "violations"))
    found = {policy: late(cell, policy, least, 0.1) for policy in cell}
    keepers = [policy for policy in cell if not found[policy]]
    overall = min(keepers, key=lambda policy: math.prod(mean(cell[policy], figure) for figure in TIMES))
    best = {figure: overall if is_mild else min(keepers, key=lambda policy: mean(cell[policy], figure)) for figure in TIMES}
    for policy, missed in found.items():
        missed += [miss for figure in TIMES for miss in slow(cell, policy, best[figure], figure, 1.1)]
        missed += late(cell, policy, "round_robin", 0.05)
        missed += [miss for figure in TIMES for miss in slow(cell, policy, "round_robin", figure, 1.05)]
    return found


def as_good(cell, policy):
    """The policies that are as good as this one or better in every figure."""
    figures = ("violations", *TIMES)
    return [other for other in cell if other != policy
            and all(mean(cell[other], figure) <= mean(cell[policy], figure) for figure in figures)]
