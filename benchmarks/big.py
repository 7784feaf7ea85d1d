"""A session of 1.3 million events: read in a fresh process, beside the harnesses' own packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import mix
from benchmarks.measure import Bar, Report
from turnlog import __version__
from turnlog.header import SessionHeader
from turnlog.session import Session
from turnlog.storage.jsonl import JsonlStorage

ID = "big"
_ROUNDS = 5
_INTEROP = Path(__file__).parents[1] / "tests" / "interop"

# Not ru_maxrss where it can be avoided: it starts with the size of the process that started this one.
_OURS = """
import json, resource, sys, time
from pathlib import Path
from turnlog.storage.jsonl import JsonlStorage
start = time.perf_counter()
stored = JsonlStorage(sys.argv[1]).inspect(sys.argv[2])
seconds = time.perf_counter() - start
status = Path("/proc/self/status")
if status.exists():
    peak = int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "events": len(stored.log), "peakBytes": peak}))
"""


def big_root() -> Path:
    """A root with the big session: packed, one zstd frame a turn. Made once, which takes half a minute."""
    root = Path(tempfile.gettempdir()) / f"turnlog-benchmark-{__version__}-{mix.BIG_TURNS}"
    done = root / "done"
    if not done.exists():
        _write(root)
        done.touch()
    return root


def _write(root: Path) -> None:
    print(f"  writing {mix.BIG_TURNS * mix.EVENTS_A_TURN:,} events to {root} ...", flush=True)
    storage = JsonlStorage(root, compression="zstd")
    header = SessionHeader(id=ID, created_at=1, cwd="/work")
    session = Session.create(ID, header=header)
    for batch in mix.iter_turns(mix.BIG_TURNS):
        start = session.seq
        mix.append_to(session, batch)
        storage.append(header, session.events[start:])


def big() -> Report:
    """`storage.inspect` of it against theirs."""
    root = big_root()
    command = [sys.executable, "-c", _OURS, str(root), ID]
    peer, reason = _peer()
    ours, theirs = [], []
    for _ in range(_ROUNDS):
        ours.append(_run(command, ""))
        if peer is not None:
            request = {"op": "time", "root": str(root), "compression": "zstd", "id": ID}
            theirs.append(_run(peer, json.dumps(request) + "\n")["ok"])
    events, peak = ours[0]["events"], median(run["peakBytes"] for run in ours) / 1e6
    size = JsonlStorage(root).location(ID)
    assert size is not None
    figures = [
        f"turnlog: {_seconds(ours):.2f} s, peak {peak:,.0f} MB",
        f"the file: {os.path.getsize(size) / 1e6:.1f} MB in {mix.BIG_TURNS:,} frames",  # noqa: PTH202 - a str
    ]
    bars = [Bar("peak of the process's memory", peak, 250, "MB")]
    if theirs:
        assert theirs[0]["events"] == events
        other = median(run["peakBytes"] for run in theirs) / 1e6
        figures.append(f"their inspect, Node 24: {_seconds(theirs):.2f} s, peak {other:,.0f} MB")
        pairs = [one["seconds"] / two["seconds"] for one, two in zip(ours, theirs, strict=True)]
        bars.append(Bar("inspect / their inspect", median(pairs), 0.5))
        figures.append(f"memory: {peak / other:.2f} x theirs")
    else:
        figures.append(f"the yardstick is missing: {reason}")
    return Report(
        f"storage.inspect of {events:,} events, without import and start-up; each in a fresh process, "
        f"{_ROUNDS} rounds in turn",
        figures,
        bars,
    )


def _seconds(runs: list[dict[str, Any]]) -> float:
    return float(median(run["seconds"] for run in runs))


def _run(command: list[str], text: str) -> dict[str, Any]:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _peer() -> tuple[list[str] | None, str]:
    """The command that drives their packages, which it installs where they are not; or None and why."""
    named = os.environ.get("TURNLOG_INTEROP_NODE_MODULES")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "turnlog-benchmark-typescript"
    folder = folder.parent if folder.name == "node_modules" else folder
    installed = subprocess.run(
        [sys.executable, str(_INTEROP / "install_peer.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode:
        return None, installed.stderr.strip().rpartition("\n")[2]
    answer = json.loads(installed.stdout)
    if "skip" in answer:
        return None, answer["skip"]
    return [answer["node"], str(_INTEROP / "peer.mjs"), str(folder)], ""
