"""Request headers: canonical form, equality, fold, and the check for the log (log.md, sections 3 and 6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from turnlog.errors import EventError
from turnlog.events import event_from_plain
from turnlog.request_header import (
    canonical_header,
    check_request_header,
    fold_request_header,
    header_equals,
)

CONFIG: dict[str, Any] = {"provider": "p", "model": "m"}
NOTHING: list[Any] = ["", None, 1]
Vectors = Callable[[str], Any]


def test_canonical_headers_are_the_references(vectors: Vectors) -> None:
    for case in vectors("request_header")["canonical"]:
        assert json.dumps(canonical_header(case["header"])) == json.dumps(case["canonical"])


def test_equality_is_the_references(vectors: Vectors) -> None:
    for case in vectors("request_header")["equal"]:
        assert header_equals(case["a"], case["b"]) is case["equal"], case
        assert header_equals(case["b"], case["a"]) is case["equal"], case


def test_folds_are_the_references(vectors: Vectors) -> None:
    for case in vectors("request_header")["fold"]:
        events = [event_from_plain(event) for event in case["events"]]
        for form in (case["events"], events):
            assert json.dumps(fold_request_header(form)) == json.dumps(case["result"])


def test_the_canonical_form_has_one_key_order_and_keeps_the_order_inside() -> None:
    header = {
        "tools": [{"b": 1, "a": 2}],
        "system": "s",
        "adapterDefaults": {"maxTokens": True},
        "config": {"model": "m", "provider": "p", "extra": [], "maxTokens": 1},
        "prefix": "kept elsewhere",
    }
    form = canonical_header(header)
    assert list(form) == ["config", "adapterDefaults", "system", "tools"]
    assert list(form["config"]) == ["model", "provider", "extra", "maxTokens"]
    assert list(form["tools"][0]) == ["b", "a"]


def test_the_canonical_form_is_detached_and_validates_nothing() -> None:
    header: dict[str, Any] = {
        "config": {"model": 1},
        "adapterDefaults": {},
        "system": "",
        "tools": [],
    }
    form = canonical_header(header)
    assert form == {"config": {"model": 1}}
    header["config"]["model"] = 2
    assert form == {"config": {"model": 1}}
    assert canonical_header(form) == form


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"stop": ["a", "b"]}, {"stop": ["b", "a"]}, False),
        ({"stop": ["a"]}, {"stop": ["a"]}, True),
        ({"stop": []}, {}, False),
        ({"temperature": 0}, {}, False),
        ({"temperature": 1}, {"temperature": 1.0}, True),
        ({"maxTokens": 5}, {"maxTokens": 6}, False),
        ({"reasoningEffort": "low"}, {"reasoningEffort": "high"}, False),
        ({"unknownToUs": 1}, {"unknownToUs": 2}, True),
    ],
)
def test_configs_are_compared_field_by_field(
    left: dict[str, Any], right: dict[str, Any], equal: bool
) -> None:
    assert header_equals({"config": CONFIG | left}, {"config": CONFIG | right}) is equal


def test_key_order_counts_inside_tools_only() -> None:
    one, two = (
        {"name": "a", "parameters": {"x": 1, "y": 2}},
        {"name": "a", "parameters": {"y": 2, "x": 1}},
    )
    base: dict[str, Any] = {"config": CONFIG}
    assert not header_equals(base | {"tools": [one]}, base | {"tools": [two]})
    assert not header_equals(base | {"tools": [one, two]}, base | {"tools": [two, one]})
    defaults = {"reasoningEffort": True, "maxTokens": True}
    swapped = dict(reversed(defaults.items()))
    assert header_equals(base | {"adapterDefaults": defaults}, base | {"adapterDefaults": swapped})
    assert header_equals(base | {"tools": [], "system": "", "adapterDefaults": {}}, base)
    assert not header_equals(base | {"system": "a"}, base)


def test_the_last_header_wins_and_none_gives_none() -> None:
    events = [
        {"type": "request/header", "data": {"header": {"config": CONFIG | {"model": name}}}}
        for name in "ab"
    ]
    assert fold_request_header([*events, {"type": "turn/end", "data": None}]) == {
        "config": CONFIG | {"model": "b"}
    }
    assert fold_request_header([]) is None
    assert fold_request_header([{"type": "request/context", "data": CONFIG}]) is None


@pytest.mark.parametrize(
    "header",
    [
        {"config": CONFIG},
        {"config": CONFIG | {"reasoningEffort": "high", "other": 1}},
        {"config": CONFIG, "adapterDefaults": {}},
        {"config": CONFIG | {"maxTokens": 1}, "adapterDefaults": {"maxTokens": True}},
        {"config": CONFIG, "prefix": "extra keys are kept"},
    ],
)
def test_a_sound_header_is_accepted(header: dict[str, Any]) -> None:
    check_request_header({"header": header, "reason": "initial"})


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"header": None},
        {"header": {}},
        {"header": {"config": None}},
        {"header": {"config": {"provider": "p"}}},
        {"header": {"config": {"model": "m"}}},
        *({"header": {"config": CONFIG | {name: bad}}} for name in CONFIG for bad in NOTHING),
        *({"header": {"config": CONFIG | {"reasoningEffort": bad}}} for bad in NOTHING),
        *({"header": {"config": CONFIG, "adapterDefaults": bad}} for bad in [*NOTHING, [], True]),
        {"header": {"config": CONFIG, "adapterDefaults": {"maxTokens": True}}},
        *(
            {"header": {"config": CONFIG | {"maxTokens": 1}, "adapterDefaults": {"maxTokens": bad}}}
            for bad in [*NOTHING, False]
        ),
        {
            "header": {
                "config": CONFIG | {"temperature": 1},
                "adapterDefaults": {"temperature": True},
            }
        },
    ],
)
def test_a_wrong_header_is_refused(data: Any) -> None:
    with pytest.raises(EventError) as caught:
        check_request_header(data)
    assert caught.value.code == "INVALID_REQUEST_HEADER"


def test_the_reason_fallback_is_retired() -> None:
    with pytest.raises(EventError) as caught:
        check_request_header({"header": {"config": CONFIG}, "reason": "fallback"})
    assert caught.value.code == "RETIRED_EVENT"
