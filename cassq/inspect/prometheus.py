"""Prometheus: serves metrics over HTTP, in the text format its server scrapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from cassq.errors import ConfigError
from cassq.inspect.metrics import COUNTER, Histogram, Metric

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

Read = Callable[[], Sequence[Metric | Histogram]]
# Facts about health; the key `healthy` says whether all is well.
Health = Callable[[], Mapping[str, Any]]


class PrometheusServer:
    """A server with its own thread; it reads the metrics at each scrape."""

    def __init__(self, read: Read, host: str, port: int, health: Health | None = None) -> None:
        """Listen. Raises ConfigError if it cannot listen at this address."""
        registry = CollectorRegistry()
        registry.register(Collector(read))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"metrics cannot be served at {host}:{port}: {exc}",
                hint="choose another port, or 0 for any free port",
            ) from exc
        self._server.set_app(_with_health(self._server.get_app(), health))
        self.host = host

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening; takes up to half a second. May be called again."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def abandon(self) -> None:
        """In a forked child: close the socket, so that the port is free once the parent ends."""
        self._server.server_close()


def _with_health(metrics: WSGIApplication, health: Health | None) -> WSGIApplication:
    """Serve /health, and metrics at every other path. Without `health`, /health is not found:
    metrics there would pass for good health."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/health":
            return metrics(environ, start_response)
        facts = {"error": "this process serves metrics, not health"} if health is None else health()
        status = "200 OK" if facts.get("healthy") else "503 Service Unavailable"
        status = "404 Not Found" if health is None else status
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(facts, indent=2).encode() + b"\n"]

    return answer


def as_text(read: Read) -> bytes:
    """The metrics now, in the text format."""
    registry = CollectorRegistry()
    registry.register(Collector(read))
    return bytes(generate_latest(registry))


class Collector:
    """Turns metrics into the families that the registry asks for."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        """Each metric as a family of values."""
        for metric in self._read():
            if isinstance(metric, Histogram):
                yield _histogram(metric)
                continue
            name, kind, help_text, values = metric
            kind_of_family = CounterMetricFamily if kind == COUNTER else GaugeMetricFamily
            labels = list(values[0][0]) if values else []
            family = kind_of_family(name, help_text, labels=labels)
            for given, value in values:
                family.add_metric([given[label] for label in labels], value)
            yield family


def _histogram(metric: Histogram) -> HistogramMetricFamily:
    labels = list(metric.values[0][0]) if metric.values else []
    family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    bounds = [*(str(bound) for bound in metric.bounds), "+Inf"]
    for given, counts, seconds in metric.values:
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric([given[label] for label in labels], buckets, seconds)
    return family
