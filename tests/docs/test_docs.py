"""The Python blocks of the documentation, run as a reader would run them.

The blocks of a page run in order and share their names. A block fenced as `python no-run` is compiled only,
for examples that need a server, a key or a user.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]

FENCE = re.compile(r"\s*(?P<marks>`{3,}|~{3,})(?P<info>[^`]*)")
LOOKS_LIKE_PYTHON = re.compile(r"(py|python|python3|pycon)\b", re.IGNORECASE)


class Block(NamedTuple):
    """A fenced block: what stands behind the opening fence, and the text with its first line (1-based)."""

    info: str
    line: int
    text: str


def iter_blocks(page: str) -> Iterator[Block]:
    """All fenced blocks of a Markdown page, in order."""
    lines = enumerate(page.splitlines(), start=1)
    for number, line in lines:
        opening = FENCE.fullmatch(line)
        if opening is None:
            continue
        marks, body = opening["marks"], []
        for _, inner in lines:
            closing = FENCE.fullmatch(inner)
            if closing and closing["marks"].startswith(marks) and not closing["info"].strip():
                break
            body.append(inner)
        else:
            raise AssertionError(f"the fence of line {number} is never closed")
        yield Block(opening["info"].strip(), number + 1, textwrap.dedent("\n".join(body)) + "\n")


def python_blocks(path: Path) -> list[Block]:
    """The blocks to run or to compile; any other spelling of Python would be left out in silence."""
    blocks = [
        block
        for block in iter_blocks(path.read_text(encoding="utf-8"))
        if LOOKS_LIKE_PYTHON.match(block.info)
    ]
    for block in blocks:
        assert block.info in {"python", "python no-run"}, (
            f"{path.name}:{block.line - 1}: write `python` or `python no-run`, not `{block.info}`"
        )
    return blocks


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_python_block_of_a_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The default store of an example must not be the reader's own.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("TURNLOG_STORE", raising=False)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(path):
        # Empty lines in front, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(path), "exec", dont_inherit=True)
        if block.info == "python":
            exec(code, names)


def test_the_readme_has_an_example_that_runs() -> None:
    assert [block for block in python_blocks(README) if block.info == "python"]


def test_blocks_are_found_whatever_their_fence() -> None:
    page = (
        "```python\na\n```\n- x\n\n  ````python no-run\n  b\n  ```\n  ````\n~~~sh\n```python\n~~~\n"
    )
    assert list(iter_blocks(page)) == [
        ("python", 2, "a\n"),
        ("python no-run", 7, "b\n```\n"),
        ("sh", 11, "```python\n"),
    ]


def test_an_unclosed_fence_is_an_error() -> None:
    with pytest.raises(AssertionError, match="line 2"):
        list(iter_blocks("x\n```python\na\n"))
