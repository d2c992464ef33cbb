"""One HTTP exchange with the standard library, its bytes kept and stamped: what the checks are made of."""
import http.client
import json
import time
import urllib.request
from urllib.parse import urlsplit

WORDS = "stream token cache prefix block queue route replica gateway latency header chunk".split()


def words(count, seed):
    """Text of that many words, another for each seed (a small generator, the same on every machine)."""
    state, out = hash_seed(seed), []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(out)


def hash_seed(seed):
    value = 1469598103934665603
    for byte in str(seed).encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


class Answer:
    def __init__(self, status, headers):
        self.status, self.headers = status, headers
        self.body, self.first_token = b"", None  # seconds after the last byte of the request

    def events(self):
        for line in self.body.split(b"\n"):
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def usage(self):
        found = [event["usage"] for event in self.events() if event.get("usage")]
        return found[-1] if found else {}


def post(url, path, body, headers=None, may_break=False):
    """Posts JSON and reads the whole answer, noting when the first content was there; what came of one that may break off."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname, target.port, timeout=300)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        start = time.perf_counter()
        response = connection.getresponse()
        answer = Answer(response.status, response.headers)
        while piece := response.read1(65536):
            now = time.perf_counter()
            answer.body += piece
            if answer.first_token is None and has_content(answer):
                answer.first_token = now - start
        return answer
    except http.client.IncompleteRead:
        if not may_break:
            raise
        return answer
    finally:
        connection.close()


def has_content(answer):
    whole = answer.body[: answer.body.rfind(b"\n\n") + 2]
    for line in whole.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                if choice.get("text") or (choice.get("delta") or {}).get("content"):
                    return True
    return False


def whole_words(url, model):
    """Makes a model say one whole word again and again. One with random weights often begins with a part of a character, which
    engines keep back until the rest is there: its first token would be seen a step or more after it was made."""
    answer = post(url, "/tokenize", {"model": model, "prompt": " the", "add_special_tokens": False})
    return {"logit_bias": {str(json.loads(answer.body)["tokens"][0]): 100}}


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def empty_cache(url):
    """Empties the prefix cache of a replica that was started with VLLM_SERVER_DEV_MODE=1; an HTTPError where it was not."""
    with urllib.request.urlopen(urllib.request.Request(f"{url}/reset_prefix_cache", method="POST"), timeout=30):
        pass


def metric(url, name):
    """Sum of all series of one metric."""
    total = 0.0
    for line in get(url + "/metrics").splitlines():
        if line.startswith(name) and line[len(name)] in "{ ":
            total += float(line.rsplit(" ", 1)[1])
    return total
