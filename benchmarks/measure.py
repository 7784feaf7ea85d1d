"""Interleaved rounds, medians, and how they are printed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import NamedTuple

ROUNDS = 7


class Bar(NamedTuple):
    """A figure, and what it must stay below, if anything is promised."""

    what: str
    value: float
    limit: float | None = None
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether the promise is kept."""
        return self.limit is None or self.value <= self.limit


class Report(NamedTuple):
    """One benchmark's outcome: what lay inside the measured region, figures in words, and the bars."""

    region: str
    figures: list[str]
    bars: list[Bar]


def interleave(
    runs: Mapping[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Seconds of each run in each round; one of each is run before as a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            gc.collect()
            start = perf_counter()
            result = run()
            seconds = perf_counter() - start
            # Taking a result apart is no part of making it.
            del result
            if number:
                times[name].append(seconds)
    return times


def ratio(times: Mapping[str, list[float]], name: str, yardstick: str) -> float:
    """The median of the rounds' own ratios: a slow moment of the machine hits both sides of it."""
    return median(one / other for one, other in zip(times[name], times[yardstick], strict=True))


def milliseconds(seconds: list[float]) -> str:
    """Median and range."""
    low, middle, high = min(seconds), median(seconds), max(seconds)
    return f"{middle * 1e3:,.2f} ms ({low * 1e3:,.2f} to {high * 1e3:,.2f})"


def print_report(name: str, report: Report) -> bool:
    """Print one benchmark; whether every bar was met."""
    print(f"\n{name}\n  measured: {report.region}")
    for figure in report.figures:
        print(f"  {figure}")
    for bar in report.bars:
        limit = "no bar" if bar.limit is None else f"bar {bar.limit:g} {bar.unit}"
        verdict = "" if bar.limit is None else "ok" if bar.met else "MISSED"
        print(f"  {verdict:6} {bar.what}: {bar.value:.3g} {bar.unit} ({limit})")
    return all(bar.met for bar in report.bars)
