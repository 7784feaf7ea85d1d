"""What a loaded session costs in memory, and what reading all of it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import mix
from benchmarks.loading import packed_text
from benchmarks.measure import Bar, Report
from turnlog.codec.record import encode_header
from turnlog.engine.batch import stored_header

_ROUNDS = 5

# One load of a small session first, so that what is made once a process is not counted.
_SCRIPT = """
import gc, json, os, sys, tracemalloc
from pathlib import Path
from turnlog.storage.jsonl.reading import read_log

small, path, traced = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "traced"
for event in read_log(small).stored.log.view():
    event.data

def used():
    gc.collect()
    if traced:
        return tracemalloc.get_traced_memory()[0]
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if traced:
    tracemalloc.start()
before = used()
stored = read_log(path).stored
loaded = used()
count = 0
for event in stored.log.view():
    count += event.seq == count and event.data is not None
read = used()
print(json.dumps({"before": before, "loaded": loaded - before, "read": read - before, "count": count}))
"""


def memory() -> Report:
    """Allocations (tracemalloc) and resident size, in a process of their own."""
    text = packed_text()
    head = encode_header(stored_header(mix.session().header))
    with TemporaryDirectory() as folder:
        path, small = Path(folder, "session.jsonl"), Path(folder, "small.jsonl")
        path.write_bytes(head + text)
        small.write_bytes(head + text[: text.index(b"\n", 50_000) + 1])
        kinds = ["traced", "resident"] if Path("/proc/self/statm").exists() else ["traced"]
        runs = {
            kind: [_run(small, path, kind) for _ in range(_ROUNDS if kind == "resident" else 1)]
            for kind in kinds
        }
    size = len(head) + len(text)
    figures, bars = [], []
    for kind, results in runs.items():
        loaded = median(result["loaded"] for result in results)
        read = median(result["read"] for result in results)
        figures.append(
            f"{kind}: {loaded / 1e6:.1f} MB after the load, {read / 1e6:.1f} MB after all events were read"
        )
        bars.append(Bar(f"{kind}, loaded / file", loaded / size, 2.0))
        bars.append(Bar(f"{kind}, after reading all / loaded", read / loaded, 1.1))
    return Report(
        f"growth by read_log of a packed file of {size / 1e6:.1f} MB ({len(mix.wire_events()):,} events), "
        "then by reading every event and its data",
        figures,
        bars,
    )


def _run(small: Path, path: Path, kind: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(small), str(path), kind],
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["count"] == len(mix.wire_events())
    return answer
