"""`docs/cli.md` names every command and option, and its examples use no other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from turnlog.cli.main import cli

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = dict(
    re.findall(r"^## `turnlog (\w+)[^`]*`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)


def option_names(command: click.Command) -> list[str]:
    return [
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in [*parameter.opts, *parameter.secondary_opts]
    ]


def test_every_option_of_the_program_is_documented() -> None:
    for name in option_names(cli):
        assert f"`{name}" in PAGE


def test_every_command_has_a_section_and_no_other_has() -> None:
    assert sorted(SECTIONS) == sorted(cli.commands)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_a_section_documents_every_option_and_has_an_example(name: str) -> None:
    section = SECTIONS[name]
    for option in option_names(cli.commands[name]):
        assert re.search(rf"`{re.escape(option)}(?![\w-])", section), option
    assert f"$ turnlog {name}" in section


def test_the_examples_use_commands_and_options_that_exist() -> None:
    lines = re.findall(r"^\$ turnlog (.+)$", PAGE, re.MULTILINE)
    assert len(lines) >= len(cli.commands)
    for line in lines:
        words = shlex.split(line.split("|")[0])
        name = next(word for word in words if word in cli.commands)
        known = option_names(cli) + option_names(cli.commands[name])
        assert [word for word in words if word.startswith("--") and word not in known] == []
