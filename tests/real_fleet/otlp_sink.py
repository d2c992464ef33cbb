#!/usr/bin/env python3
"""Receives OTLP over HTTP and writes one JSON line per export: trace ids and attribute names, or the names of metrics.

With the package opentelemetry-proto the message is decoded; without it the 16 bytes after each trace-id tag are
taken, which is all that the check needs.
"""
import argparse
import gzip
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
except ImportError:
    ExportTraceServiceRequest = None


def decoded(body):
    message = ExportTraceServiceRequest.FromString(body)
    spans = [s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans]
    names = {a.key for s in spans for a in s.attributes}
    return {s.trace_id.hex() for s in spans}, names


def links(body):
    """Trace and span id of every root span, and of the spans that it links to."""
    if ExportTraceServiceRequest is None:
        return []
    message = ExportTraceServiceRequest.FromString(body)
    spans = (s for r in message.resource_spans for scope in r.scope_spans for s in scope.spans)
    return [[s.trace_id.hex(), s.span_id.hex(), [[link.trace_id.hex(), link.span_id.hex()] for link in s.links]] for s in spans if not s.parent_span_id]


def guessed(body):
    # Field 1 of a Span, 16 bytes long: tag 0x0a, length 0x10.
    traces = {body[m.end():m.end() + 16].hex() for m in re.finditer(rb"\x0a\x10", body)}
    names = {name.decode() for name in re.findall(rb"(?:gen_ai|tokenway|http|server|error)\.[a-z_.]+", body)}
    return traces, names


def metrics(body):
    """Kind and sum (counts of histograms) of every metric."""
    if ExportTraceServiceRequest is None:
        return {}
    message = ExportMetricsServiceRequest.FromString(body)
    found = {}
    for metric in (m for r in message.resource_metrics for scope in r.scope_metrics for m in scope.metrics):
        kind = metric.WhichOneof("data")
        points = getattr(metric, kind).data_points
        histogram = kind in ("histogram", "exponential_histogram")
        found[metric.name] = [kind, sum(p.count if histogram else p.as_double or p.as_int for p in points)]
    return found


class Sink(BaseHTTPRequestHandler):
    out = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.endswith("/metrics"):
            line = {"path": self.path, "traces": [], "names": [], "metrics": metrics(body)}
        else:
            traces, names = (decoded if ExportTraceServiceRequest else guessed)(body)
            line = {"path": self.path, "traces": sorted(traces), "names": sorted(names), "roots": links(body)}
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    Sink.out = open(args.out, "w")
    ThreadingHTTPServer(("127.0.0.1", args.port), Sink).serve_forever()


main()
