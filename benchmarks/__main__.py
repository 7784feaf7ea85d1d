"""Runs benchmarks by name; exit code 1 when a bar is missed."""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks import (
    appending,
    big,
    committing,
    forking,
    importing,
    listing,
    loading,
    memory,
    recording,
)
from benchmarks.measure import Report, print_report

BENCHMARKS: dict[str, Callable[[], Report]] = {
    "load_raw": loading.load_raw,
    "load_packed": loading.load_packed,
    "append": appending.append,
    "recorder": recording.recorder,
    "encode": appending.encode,
    "fork": forking.fork,
    "memory": memory.memory,
    "big": big.big,
    "import": importing.import_time,
    "list": listing.list_sessions,
    "commit": committing.commit,
    "flush": committing.flush,
    "browse": committing.browse,
}


def main(names: list[str]) -> int:
    """Run those named, or all; the exit code."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    met = [print_report(name, BENCHMARKS[name]()) for name in names or BENCHMARKS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
