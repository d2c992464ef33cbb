"""The processes of one run: engines, a broker, gateways."""
import asyncio, pathlib, subprocess, sys, tempfile, time, urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from ports import free_ports


# Of every gateway; what it serves comes behind.
HEAD = """
[server]
listen = "127.0.0.1:{data}"
[admin]
listen = "127.0.0.1:{admin}"
[telemetry]
access_log = "off"
[drift]
state = "{folder}/state-{at}.json"
"""


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def wait(url, text=""):
    """Until the URL answers, with this text."""
    for _ in range(600):
        try:
            if text in get(url):
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"{url} does not answer{text and ' with '}{text}")


class Processes:
    """All end with the run."""

    def __init__(self, args):
        self.args, self.running, self.files = args, [], tempfile.TemporaryDirectory()
        self.broker_port = None
        self.data, self.admin, self.commands, self.gateways = [], [], [], []

    def start(self, *command):
        log = open(f"{self.files.name}/log", "ab")
        self.running.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.running[-1]

    def start_gateway(self, config):
        """On free ports, with this configuration and a state of its own."""
        at, (data, admin) = len(self.gateways), free_ports(2)
        file = pathlib.Path(self.files.name, f"{at}.toml")
        file.write_text(HEAD.format(data=data, admin=admin, folder=self.files.name, at=at) + config)
        self.data.append(data)
        self.admin.append(admin)
        self.commands.append((self.args.binary, "serve", "--config", str(file)))
        self.gateways.append(self.start(*self.commands[at]))

    def wait_for_gateways(self):
        for admin in self.admin:
            wait(f"http://127.0.0.1:{admin}/readyz")

    async def restart_gateway(self, at, is_killed=False):
        (self.gateways[at].kill if is_killed else self.gateways[at].terminate)()
        await asyncio.to_thread(self.gateways[at].wait)
        self.gateways[at] = self.start(*self.commands[at])
        await asyncio.to_thread(self.wait_for_gateways)

    def start_broker(self):
        """On the port that it had before, if any."""
        if self.broker_port is None:
            [self.broker_port] = free_ports(1)
        self.broker = self.start(self.args.broker, "--port", str(self.broker_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")

    async def without_broker(self, seconds):
        """Kills it, with all that it knew, and starts it again after so long."""
        self.broker.kill()
        self.broker.wait()
        await asyncio.sleep(seconds)
        self.start_broker()

    def end(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        self.files.cleanup()
