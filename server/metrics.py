"""What /metrics says: Prometheus metrics of one app, in a registry of its own. Touches no network and no global state.

Counters and histograms are fed as steps end. What the evaluator knows itself (its queue, its workers, the use of its
GPUs) is asked for at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kernel_env.models import InfraCode

WORKER_STATES = ("starting", "idle", "busy", "down")
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 240.0)


class Metrics:
    """The instruments of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "kernel_env_verdicts", "Steps answered, by stage and outcome", ["stage", "outcome"], registry=self.registry
        )
        self._faults = Counter(
            "kernel_env_infrastructure_faults", "Steps that met a fault of ours", ["code"], registry=self.registry
        )
        self._retries = Counter(
            "kernel_env_retries",
            "Evaluations tried again, by the fault of ours or the signal that ended the attempt",
            ["after"],
            registry=self.registry,
        )
        for code in InfraCode:  # so that an alert on their increase sees the first one
            self._faults.labels(code.value)
            self._retries.labels(code.value)
        self._waits = Histogram(
            "kernel_env_queue_wait_seconds", "Wait for a worker", buckets=_SECONDS, registry=self.registry
        )
        self._phases = Histogram(
            "kernel_env_phase_seconds",
            "Wall time of a step by phase; total is all of it",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._in_work = Gauge(
            "kernel_env_evaluations_in_work",
            "Submissions received and not answered, those that wait for a worker included",
            registry=self.registry,
        )

    @contextmanager
    def in_work(self) -> Iterator[None]:
        """Counts one submission as in work meanwhile."""
        with self._in_work.track_inprogress():
            yield

    def answered(
        self, stage: str, outcome: str, infra_code: str | None = None, phase_seconds: Mapping[str, float] | None = None
    ) -> None:
        """Count one step. `phase_seconds` has "queue" where the submission reached the evaluator."""
        self._answers.labels(stage, outcome).inc()
        if infra_code is not None:
            self._faults.labels(infra_code).inc()
        for phase, seconds in (phase_seconds or {}).items():
            if phase == "queue":
                self._waits.observe(seconds)
            else:
                self._phases.labels(phase).observe(seconds)

    def retried(self, after: Iterable[str]) -> None:
        """Count further attempts at one step."""
        for code in after:
            self._retries.labels(code).inc()

    def watch(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Ask `facts` (server.operations.facts) at each scrape for what is true at that time."""
        self.registry.register(_Present(facts))

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)


class _Present(Collector):
    def __init__(self, facts: Callable[[], Mapping[str, Any]]) -> None:
        self._facts = facts

    def describe(self) -> list[Metric]:
        return []  # or the registry would collect at registration

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        info = GaugeMetricFamily(
            "kernel_env_server_info",
            "Always 1; the labels say what this server is",
            labels=["version", "evaluator", "sandbox", "task_source"],
        )
        labels = (facts["version"], facts["evaluator"], facts["sandbox"], facts["tasks"]["source"])
        info.add_metric([str(label or "none") for label in labels], 1)
        yield info
        sessions = facts["sessions"]
        for name, text, value in (
            ("kernel_env_ready", "1 while at least one worker can evaluate, else 0", int(facts["ready"])),
            ("kernel_env_open_sessions", "Sessions that hold a slot", sessions["open"]),
            ("kernel_env_max_sessions", "Slots for sessions", sessions["max"]),
            ("kernel_env_queue_depth", "Submissions that wait for a worker", facts["queue_depth"]),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            "kernel_env_log_lines_dropped",
            "Log lines that did not reach the file or stdout",
            facts["log_lines_dropped"],
        )
        yield _worker_states(facts["workers"])
        yield from _gpu_use(facts.get("leases", []))


def _worker_states(workers: list[dict[str, Any]]) -> Metric:
    states = GaugeMetricFamily("kernel_env_workers", "Workers by state", labels=["state"])
    counts = dict.fromkeys(WORKER_STATES, 0)
    for worker in workers:
        counts[worker["state"]] = counts.get(worker["state"], 0) + 1
    for state, count in counts.items():
        states.add_metric([state], count)
    return states


def _gpu_use(leases: list[dict[str, Any]]) -> Iterator[Metric]:
    used = CounterMetricFamily(
        "kernel_env_gpu_busy_seconds",
        "Time for which judges held the GPU: several of them shared, or one alone to time a submission",
        labels=["gpu", "use"],
    )
    share = GaugeMetricFamily(
        "kernel_env_gpu_busy_ratio", "The share of its time since the start that judges held the GPU", labels=["gpu"]
    )
    for lease in leases:
        gpu = "cpu" if lease["gpu"] is None else str(lease["gpu"])
        for use, seconds in lease["used_seconds"].items():
            used.add_metric([gpu, use], seconds)
        share.add_metric([gpu], min(1.0, sum(lease["used_seconds"].values()) / max(lease["age_seconds"], 1e-9)))
    yield used
    yield share
