"""The processes of one run: engines, a broker, gateways."""
import asyncio, pathlib, subprocess, sys, tempfile, time, urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from ports import free_ports


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
        [self.broker_port] = free_ports(1)

    def start(self, *command):
        log = open(f"{self.files.name}/log", "ab")
        self.running.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.running[-1]

    def start_broker(self):
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
