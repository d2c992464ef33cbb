"""docs/runbook.md, followed: its queries asked of a Prometheus in mid-incident, and what their answers name.

A query is found in the runbook by a part of it, and asked as it stands there, in the time of alerts.py; one that is no longer in the
runbook fails.
"""

import os
import re
import urllib.parse

from alerts import faster
from fleet import read

RUNBOOK = os.path.join(os.path.dirname(__file__), "../../docs/runbook.md")


class Look:
    """One look of the runbook: the largest series of a query (`part` of its text), among those with the labels `of`, has the labels `names`."""

    def __init__(self, part, names, of=None):
        self.part, self.names, self.of = part, names, of or {}

    def query(self):
        with open(RUNBOOK, encoding="utf-8") as file:
            spans = [" ".join(span.split()) for span in file.read().split("`")[1::2]]
        return next((span for span in spans if self.part in span), None)

    def wrong(self, prometheus, _fleet):
        """Why it does not name the cause; None where it does."""
        query = self.query()
        if query is None:
            return f"the runbook has no query with {self.part}"
        series = prometheus.get("/api/v1/query?" + urllib.parse.urlencode({"query": faster(query)}))["result"]
        found = [(float(one["value"][1]), one["metric"]) for one in series if matches(one["metric"], self.of)]
        value, largest = max(found, key=lambda one: one[0] if one[0] == one[0] else -1.0, default=(0.0, {}))
        if value > 0 and matches(largest, self.names):
            return None
        return f"{query}: the largest is {largest} ({value:.3g}), not {self.names}"


class State:
    """`GW/api/fleet`: the state of a replica and why, at the first gateway."""

    def __init__(self, replica, words):
        self.replica, self.words = replica, words

    def wrong(self, _prometheus, fleet):
        view = read(fleet.admin[0], "fleet") or {}
        said = [f"{one.get('state')}: {one.get('reason')}" for one in replicas(view) if one.get("replica") == self.replica]
        if any(re.search(self.words, one) for one in said):
            return None
        return f"GW/api/fleet says {said} of {self.replica}, not {self.words}"


class Either:
    """One of these looks names it."""

    def __init__(self, *looks):
        self.looks = looks

    def wrong(self, prometheus, fleet):
        wrong = [look.wrong(prometheus, fleet) for look in self.looks]
        return None if None in wrong else "; ".join(wrong)


def replicas(view):
    """Every object with a replica's name, wherever it stands."""
    if isinstance(view, dict):
        return ([view] if "replica" in view else []) + [one for value in view.values() for one in replicas(value)]
    return [one for value in view for one in replicas(value)] if isinstance(view, list) else []


def matches(metric, labels):
    return all(re.fullmatch(pattern, metric.get(name, "")) for name, pattern in labels.items())
