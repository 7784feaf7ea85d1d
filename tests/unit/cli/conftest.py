"""Runs the command line in this process, over a store of its own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turnlog.cli.main import main


class Result(NamedTuple):
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value that was printed."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """The JSON values that were printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the store that `TURNLOG_STORE` names for the test."""
    monkeypatch.setenv("TURNLOG_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(params=["store", "store.db"], ids=["jsonl", "sqlite"])
def any_store(request: pytest.FixtureRequest, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of `run` as a directory of logs, and as a database."""
    path = store.with_name(request.param)
    monkeypatch.setenv("TURNLOG_STORE", str(path))
    return path


@pytest.fixture
def run(store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `turnlog` with the arguments; `stdin` are bytes."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def examples(run: Run) -> Run:
    """`run` over a store that holds the sample sessions."""
    assert run("import", "--examples").code == 0
    return run
