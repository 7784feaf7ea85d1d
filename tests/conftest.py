"""What all tests share: where the reference material lies, and how hard hypothesis looks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No deadline: a shared machine is slow at times, and the time limit of each test catches the rest.
settings.register_profile(
    "quick", max_examples=60, deadline=None, derandomize=False, print_blob=True
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=1000)
settings.load_profile(os.environ.get("TURNLOG_HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of vectors and transcripts, which is kept outside the repository.

    `TURNLOG_SHARED` names it; without that, it is looked for beside the checkout.
    """
    named = os.environ.get("TURNLOG_SHARED")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        # A name that somebody set and that leads nowhere is a mistake, not an absence.
        if named:
            pytest.fail(f"TURNLOG_SHARED names no directory: {folder}")
        pytest.skip("no reference material: set TURNLOG_SHARED to the folder that holds `vectors`")
    return folder


@pytest.fixture(scope="session")
def vectors(shared_folder: Path) -> Callable[[str], Any]:
    """Reads a file of vectors: `vectors("uri")` is the parsed `vectors/uri.json`."""

    def read(name: str) -> Any:
        path = shared_folder / "vectors" / f"{name}.json"
        if not path.is_file():
            pytest.skip(f"no vectors {name!r} in the reference material")
        return json.loads(path.read_text(encoding="utf-8"))

    return read


@pytest.fixture(scope="session")
def transcripts(shared_folder: Path) -> Path:
    """The folder of transcripts that other agents have written, one folder a format."""
    folder = shared_folder / "transcripts"
    if not folder.is_dir():
        pytest.skip("no transcripts in the reference material")
    return folder
