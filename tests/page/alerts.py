"""A real Prometheus on the shipped rules, in a time of its own: every window, offset and `for` of rules.yml is divided by its speed.

Thresholds and counts stay as they are: five misses in an hour are five misses in three minutes here, so that a rule has to
find the same evidence in less traffic than it would have.
"""

import asyncio
import json
import os
import re
import subprocess
import urllib.request

SPEED = 20
# Of what comes at the gateway's own pace: ejections, and time-outs of single requests.
SLOW_SPEED = 5
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
RULES = os.path.join(os.path.dirname(__file__), "../../config/prometheus/rules.yml")


def faster(rules, speed=SPEED):
    """The rules with their durations divided by `speed`: `[5m]`, `offset 5m`, `for: 2m`, `interval: 30s`."""

    def divided(found):
        seconds = int(found[2]) * SECONDS[found[3]] / speed
        return f"{found[1]}{max(1, round(seconds))}s"

    return re.sub(r"(\[|\boffset |\bfor: |\binterval: )(\d+)([smhd])\b", divided, rules)


class Prometheus:
    """Scrapes the admin ports every second; `folder` is its own."""

    def __init__(self, folder, port, admins, speed=SPEED):
        self.url = f"http://127.0.0.1:{port}"
        with open(RULES, encoding="utf-8") as rules, open(f"{folder}/rules.yml", "w", encoding="utf-8") as file:
            file.write(faster(rules.read(), speed))
        targets = ", ".join(f'"127.0.0.1:{admin}"' for admin in admins)
        with open(f"{folder}/prometheus.yml", "w", encoding="utf-8") as file:
            file.write(
                "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\nrule_files: [rules.yml]\n"
                f"scrape_configs:\n  - job_name: inference\n    static_configs: [{{ targets: [{targets}] }}]\n"
            )
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
            stdout=subprocess.DEVNULL,
        )

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:
            return json.load(answer)["data"]

    async def firing(self):
        """Names of the alerts that fire now; with `replica` or `pool` where they have one."""
        try:
            alerts = await asyncio.to_thread(self.get, "/api/v1/alerts")
        except OSError:
            return set()
        return {alert["labels"]["alertname"].removeprefix("Tokenway") for alert in alerts["alerts"] if alert["state"] == "firing"}

    def broken(self):
        """Rules that could not be evaluated, with their error."""
        groups = self.get("/api/v1/rules")["groups"]
        return [f"{rule['name']}: {rule['lastError']}" for group in groups for rule in group["rules"] if rule["health"] == "err"]

    def stop(self):
        self.process.kill()
        self.process.wait()
