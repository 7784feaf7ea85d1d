"""What `import turnlog` adds to the start of a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from statistics import median

from benchmarks.measure import Bar, Report, interleave, milliseconds

_ROUNDS = 20


def import_time() -> Report:
    """Fresh interpreters with and without the import."""

    def start(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    programs = {
        "bare": "pass",
        "msgspec": "import msgspec",
        "turnlog": "import turnlog",
        "open": "import turnlog; turnlog.open",
    }
    times = interleave({name: start(code) for name, code in programs.items()}, _ROUNDS)
    over = {
        name: median(one - bare for one, bare in zip(times[name], times["bare"], strict=True)) * 1e3
        for name in programs
    }
    return Report(
        f"a whole process, {_ROUNDS} rounds in turn; compiled modules are cached",
        [
            f"python -c pass: {milliseconds(times['bare'])}",
            f"import msgspec: {over['msgspec']:.1f} ms over it",
            f"import turnlog: {over['turnlog']:.1f} ms over it",
            f"with turnlog.open, ready to open a store: {over['open']:.1f} ms over it",
        ],
        [Bar("import turnlog over a bare interpreter", over["turnlog"], 60, "ms")],
    )
