"""The surface (log.md, section 5): the reference's answers, and every rule that no vector pins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest

from turnlog.errors import SurfaceError
from turnlog.events import SessionEvent
from turnlog.lossless import json_equal
from turnlog.session import Session
from turnlog.surface import (
    ABSENT,
    SurfaceCode,
    SurfaceManager,
    derive_event_message,
    fold_surface,
    is_append_surface_event,
    is_replacement_surface_event,
    is_surface_event,
)

Vectors = Callable[[str], Any]
Wire = dict[str, Any]
DEPTH = 100_000


def event(seq: int, type_: str, data: Any, op: Any = "append", sources: Any = ABSENT) -> Wire:
    wire = {"type": type_, "seq": seq, "time": 1000 + seq, "data": data}
    if op is not ABSENT:
        wire["surfaceOp"] = op
    return wire if sources is ABSENT else wire | {"sourceEventSeqs": sources}


def user(seq: int, op: Any = "append", sources: Any = ABSENT) -> Wire:
    message = {
        "id": f"u{seq}",
        "role": "user",
        "content": [{"type": "text", "text": "q"}],
        "source": {"kind": "user"},
    }
    return event(seq, "user/message", message, op, sources)


def model(
    seq: int, op: Any = "append", sources: Any = ABSENT, content: list[Any] | None = None
) -> Wire:
    source = {"kind": "model", "provider": "p", "model": "m"}
    blocks = [{"type": "text", "text": "a"}] if content is None else content
    message = {"id": f"a{seq}", "role": "assistant", "content": blocks, "source": source}
    return event(seq, "assistant/message", {"turn": 1, "step": 1, "message": message}, op, sources)


def result_data(
    text: str = "out", block: Wire | None = None, message: Wire | None = None, **more: Any
) -> Wire:
    content = [{"type": "text", "text": text}]
    result = {"type": "tool-result", "toolCallId": "c", "content": content, "isError": False} | (
        block or {}
    )
    whole = {
        "id": "r",
        "role": "user",
        "source": {"kind": "tool", "callId": "c"},
        "content": [result],
    }
    return {"turn": 1, "step": 1, "message": whole | (message or {})} | more


def result(seq: int, op: Any = "append", sources: Any = ABSENT, data: Wire | None = None) -> Wire:
    return event(seq, "tool/result", result_data() if data is None else data, op, sources)


def note(seq: int, op: Any = ABSENT, sources: Any = ABSENT) -> Wire:
    return event(seq, "turn/start", {"turn": 1}, op, sources)


def replace(start: Any, end: Any, **more: Any) -> Wire:
    return {"op": "replace", "start": start, "end": end} | more


def refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except SurfaceError as error:
        return error.code
    return None


def code_of(events: list[Wire]) -> str | None:
    """The code of the refusal, which a fold and a session's seed must share."""
    code = refusal(lambda: fold_surface(events))
    assert refusal(lambda: Session.create("s", events)) == code
    assert code is None or code in get_args(SurfaceCode)
    return code


def test_folds_are_the_references(vectors: Vectors) -> None:
    for case in vectors("surface"):
        if "error" in case:
            with pytest.raises(SurfaceError) as caught:
                fold_surface(case["events"])
            assert caught.value.code == case["error"], case["name"]
        else:
            assert fold_surface(case["events"]).to_dict() == case["result"], case["name"]
            ours = [SessionEvent.from_dict(one) for one in case["events"]]
            assert fold_surface(ours).to_dict() == case["result"], case["name"]


# -- append and replace --------------------------------------------------------------------------------


def test_append_adds_at_the_tail_and_replace_takes_the_place_of_its_range() -> None:
    events = [user(0), model(1), user(2), note(3), user(4, replace(1, 2), [1, 2])]
    assert fold_surface(events).to_dict() == {
        "nodes": [0, 4],
        "replacements": [{"seq": 4, "start": 1, "end": 2, "shadowedSeqs": [1, 2]}],
    }


def test_order_is_by_position_so_start_may_be_the_larger_seq() -> None:
    head = [user(0), user(1), user(2), user(3, replace(0, 1), [0, 1])]
    surface = fold_surface([*head, user(4, replace(3, 2), [2, 3])])
    assert surface.nodes == (4,)
    assert surface.replacements[-1].shadowed_seqs == (3, 2)
    assert code_of([*head, user(4, replace(2, 3), [2, 3])]) == "RANGE_REVERSED"


def test_a_single_node_is_replaced_by_start_equal_end() -> None:
    assert fold_surface([user(0), user(1), user(2), user(3, replace(1, 1), [1])]).nodes == (0, 3, 2)


def test_a_shadowed_node_is_gone() -> None:
    head = [user(0), user(1), user(2, replace(0, 0), [0])]
    assert code_of([*head, user(3, replace(0, 1), [0, 1])]) == "START_NOT_FOUND"
    assert code_of([*head, user(3, replace(1, 0), [0, 1])]) == "END_NOT_FOUND"


def test_any_surface_type_may_replace_but_results_only_results() -> None:
    assert code_of([user(0), model(1, replace(0, 0), [0])]) is None
    assert code_of([result(0), user(1, replace(0, 0), [0])]) is None
    assert code_of([user(0), result(1, replace(0, 0), [0])]) == "RESULT_TARGET"


BAD_OPS: list[Any] = [
    None,
    1,
    True,
    "",
    "replace",
    "Append",
    [],
    ["append"],
    {},
    {"op": "append"},
    {"op": "x"},
]
NOT_LISTS: list[Any] = [None, 0, True, "0", {}]


# -- codes and their order -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([user(1)], "NOT_CONTIGUOUS"),
        ([user(0), user(0)], "NOT_CONTIGUOUS"),
        ([note(0, "append")], "NOT_ELIGIBLE_OP"),
        ([note(0, None)], "NOT_ELIGIBLE_OP"),
        ([note(0, ABSENT, [])], "NOT_ELIGIBLE_SOURCES"),
        ([note(0, ABSENT, None)], "NOT_ELIGIBLE_SOURCES"),
        ([user(0, ABSENT)], "OP_MISSING"),
        ([model(0, ABSENT)], "OP_MISSING"),
        ([result(0, ABSENT)], "OP_MISSING"),
        *(([user(0, bad)], "OP_INVALID") for bad in BAD_OPS),
        ([user(0), user(1, {"op": "replace", "start": 0})], "OP_INVALID_REPLACE"),
        ([user(0), user(1, replace(0, 0, why="x"))], "OP_INVALID_REPLACE"),
        *(([user(0), user(1, replace(0, bad))], "OP_INVALID_REPLACE") for bad in (-1, 0.5, "0", None, 2**53, True)),
        *(([user(0), user(1, replace(bad, 0))], "OP_INVALID_REPLACE") for bad in (-1, 0.5, "0", None, 2**53, False)),
        ([user(0), user(1, replace(5, 9))], "START_NOT_FOUND"),
        ([note(0), user(1), user(2, replace(0, 1), [0, 1])], "START_NOT_FOUND"),
        ([user(0), user(1, replace(1, 1), [0])], "START_NOT_FOUND"),
        ([user(0), user(1, replace(0, 1))], "END_NOT_FOUND"),
        ([user(0), user(1), user(2, replace(1, 0))], "RANGE_REVERSED"),
        *(([user(0), user(1, "append", bad)], "SOURCES_NOT_LIST") for bad in NOT_LISTS),
        ([user(0, "append", [])], "SOURCES_EMPTY"),
        ([result(0, "append", [])], "SOURCES_EMPTY"),
        *(
            ([user(0), user(1, "append", [0, bad])], "SOURCES_INVALID")
            for bad in (-1, 0.5, "0", None, True, False, 2**53, [0], -(2**60))
        ),
        ([user(0), user(1, "append", [0, 0])], "SOURCES_DUPLICATE"),
        ([user(0), user(1, "append", [5, 0, 5])], "SOURCES_DUPLICATE"),
        ([user(0, "append", [0])], "SOURCES_NOT_EARLIER"),
        ([user(0), user(1, "append", [0, 7])], "SOURCES_NOT_EARLIER"),
        ([user(0), user(1, replace(0, 0))], "SOURCES_INCOMPLETE"),
        ([note(0), user(1), user(2, replace(1, 1), [0])], "SOURCES_INCOMPLETE"),
        ([user(0), user(1), user(2), user(3, replace(0, 2), [0, 2])], "SOURCES_INCOMPLETE"),
        ([user(0), model(1, replace(0, 0), [])], "SOURCES_INCOMPLETE"),
        ([result(0), result(1), result(2, replace(0, 1), [0, 1])], "RESULT_NOT_SINGLE"),
        ([model(0), result(1, replace(0, 0), [0])], "RESULT_TARGET"),
        ([result(0), result(1, replace(0, 0), [0], result_data(turn=2))], "RESULT_CONTENT_ONLY"),
    ],
)  # fmt: skip
def test_each_refusal_has_its_code(events: list[Wire], code: str) -> None:
    assert code_of(events) == code


FAULTS: dict[str, dict[str, Any]] = {
    "NOT_CONTIGUOUS": {"seq": 9},
    "OP_INVALID_REPLACE": {"op": replace(0, 1, x=1)},
    "START_NOT_FOUND": {"op": replace(7, 1)},
    "END_NOT_FOUND": {"op": replace(0, 7)},
    "RANGE_REVERSED": {"op": replace(1, 0)},
    "SOURCES_NOT_LIST": {"sources": "x"},
    "SOURCES_EMPTY": {"sources": []},
    "SOURCES_INVALID": {"sources": [-1, -1, 9]},
    "SOURCES_DUPLICATE": {"sources": [9, 9]},
    "SOURCES_NOT_EARLIER": {"sources": [9]},
    "SOURCES_INCOMPLETE": {"sources": [0]},
    "RESULT_NOT_SINGLE": {"sources": [0, 1]},
}


def test_the_first_failing_condition_gives_the_code() -> None:
    """Each pair of faults in one candidate is reported by the one that is checked first."""
    codes = list(FAULTS)
    head = [result(0), result(1)]
    for index, first in enumerate(codes):
        for later in codes[index:]:
            parts: Any = (
                {"seq": 2, "op": replace(0, 1), "sources": [0, 1]} | FAULTS[later] | FAULTS[first]
            )
            with pytest.raises(SurfaceError) as caught:
                fold_surface([*head, result(parts["seq"], parts["op"], parts["sources"])])
            assert caught.value.code == first, later
    order = list(get_args(SurfaceCode))
    assert codes == [code for code in order if code in FAULTS]


def test_a_type_off_the_surface_is_told_of_its_op_before_its_sources() -> None:
    assert code_of([note(0, "append", [])]) == "NOT_ELIGIBLE_OP"


# -- sources -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        [model(0, "append", [])],
        [model(0)],
        [note(0), user(1, "append", [0])],
        [note(0), note(1), model(2, "append", [1, 0])],
        [user(0), note(1), user(2, replace(0, 0), [1, 0])],
    ],
)
def test_sources_may_name_any_earlier_events_in_any_order(events: list[Wire]) -> None:
    assert code_of(events) is None


def test_an_empty_list_and_no_list_of_sources_stay_apart() -> None:
    session = Session.create("s", [model(0, "append", []), model(1)])
    assert session.events[0].to_dict()["sourceEventSeqs"] == []
    assert "sourceEventSeqs" not in session.events[1].to_dict()


# -- rewritten results ---------------------------------------------------------------------------------

BASE = result_data(meta={"a": 1, "b": [1.5]}, error={"name": "E", "code": "C"}, turn=1, step=2)


@pytest.mark.parametrize(
    "data",
    [
        BASE,
        result_data(
            "other", turn=1, step=2, error={"code": "C", "name": "E"}, meta={"b": [1.5], "a": 1.0}
        ),
        BASE | {"message": result_data(block={"content": []})["message"]},
        BASE
        | {
            "message": result_data(block={"content": [{"type": "image", "x": [1]}, None]})[
                "message"
            ]
        },
    ],
)
def test_a_rewrite_may_change_the_content_of_the_result_and_key_order(data: Wire) -> None:
    assert code_of([result(0, data=BASE), result(1, replace(0, 0), [0], data)]) is None


@pytest.mark.parametrize(
    "data",
    [
        BASE | {"turn": 2},
        BASE | {"step": 1},
        BASE | {"meta": None},
        BASE | {"meta": {"a": True, "b": [1.5]}},
        BASE | {"extra": 1},
        BASE | {"error": {"name": "E", "code": "D"}},
        {key: value for key, value in BASE.items() if key != "error"},
        {key: value for key, value in BASE.items() if key != "meta"},
        BASE | {"message": result_data(message={"id": "other"})["message"]},
        BASE | {"message": result_data(message={"extra": 1})["message"]},
        BASE | {"message": result_data(block={"isError": True})["message"]},
        BASE | {"message": result_data(block={"extra": 1})["message"]},
        BASE
        | {
            "message": result_data(
                block={"toolCallId": "d"}, message={"source": {"kind": "tool", "callId": "d"}}
            )["message"]
        },
    ],
)
def test_a_rewrite_may_change_nothing_else(data: Wire) -> None:
    assert (
        code_of([result(0, data=BASE), result(1, replace(0, 0), [0], data)])
        == "RESULT_CONTENT_ONLY"
    )


def test_a_rewrite_is_compared_with_the_node_it_replaces_and_may_be_rewritten_again() -> None:
    events = [result(0), note(1), result(2, replace(0, 0), [0], result_data("cut"))]
    assert fold_surface(
        [*events, result(3, replace(2, 2), [2], result_data("cut more"))]
    ).nodes == (3,)


def test_a_rewrite_is_compared_at_any_depth() -> None:
    deep: Any = 1
    for _ in range(DEPTH):
        deep = [deep]
    manager = SurfaceManager(
        [SessionEvent("tool/result", 0, 0, b"null", decoded=result_data(meta=deep))]
    )
    manager.add(0, "tool/result", result_data(meta=deep), "append")
    with pytest.raises(SurfaceError) as caught:
        manager.add(1, "tool/result", result_data(meta=[deep]), replace(0, 0), [0])
    assert caught.value.code == "RESULT_CONTENT_ONLY"
    manager.add(1, "tool/result", result_data("new", meta=deep), replace(0, 0), [0])
    assert json_equal(manager.nodes, [1])


# -- the manager ---------------------------------------------------------------------------------------


def manage(events: list[Wire], base_seq: int = 0) -> SurfaceManager:
    log = [SessionEvent.from_dict(one) for one in events]
    manager = SurfaceManager(log, base_seq)
    for one in events:
        op, sources = one.get("surfaceOp", ABSENT), one.get("sourceEventSeqs", ABSENT)
        manager.add(one["seq"], one["type"], one["data"], op, sources)
    return manager


def test_a_refused_candidate_changes_nothing() -> None:
    manager = manage([user(0), result(1), user(2, replace(0, 0), [0])])
    before = (manager.to_surface(), manager.replace_generation, len(manager), manager.save())
    refused: list[Any] = [
        (3, "user/message", {}),
        (3, "user/message", {}, replace(0, 2), [0]),
        (9, "x", None),
    ]
    for parts in refused:
        with pytest.raises(SurfaceError):
            manager.add(*parts)
    assert (
        manager.to_surface(),
        manager.replace_generation,
        len(manager),
        manager.save(),
    ) == before
    manager.add(3, "user/message", {}, replace(2, 1), [2, 1])
    assert (manager.nodes, manager.replace_generation) == ([3], 2)


def test_replace_generation_counts_committed_replaces() -> None:
    manager = manage([user(0)])
    assert manager.replace_generation == 0
    manager.add(1, "user/message", {}, replace(0, 0), [0])
    manager.add(2, "user/message", {}, "append")
    assert manager.replace_generation == 1


def test_a_window_starts_at_its_base_and_knows_nothing_before() -> None:
    window = [user(5), result(6), note(7), result(8, replace(6, 6), [6, 2])]
    assert manage(window, 5).to_surface().nodes == (5, 8)
    with pytest.raises(SurfaceError) as caught:
        manage([*window, user(9, replace(3, 5), [3, 5])], 5)
    assert caught.value.code == "START_NOT_FOUND"
    for base in (4, 6):
        with pytest.raises(SurfaceError) as caught:
            manage(window, base)
        assert caught.value.code == "NOT_CONTIGUOUS"


def test_nodes_are_given_as_a_copy() -> None:
    manager = manage([user(0)])
    nodes = manager.nodes
    manager.add(1, "user/message", {}, "append")
    assert nodes == [0]
    twin = manager.copy_for([])
    manager.add(2, "user/message", {}, "append")
    assert (twin.nodes, manager.nodes) == ([0, 1], [0, 1, 2])


# -- what an event is and says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "kinds"),
    [
        (user(0), (True, True, False)),
        (model(0), (True, True, False)),
        (result(1, replace(0, 0), [0]), (True, False, True)),
        (note(0), (False, False, False)),
        (event(0, "assistant/chunk", {}, ABSENT), (False, False, False)),
    ],
)
def test_the_kinds_of_surface_events(wire: Wire, kinds: tuple[bool, bool, bool]) -> None:
    for form in (wire, SessionEvent.from_dict(wire)):
        found = (
            is_surface_event(form),
            is_append_surface_event(form),
            is_replacement_surface_event(form),
        )
        assert found == kinds


def test_an_events_message_is_the_stored_one_verbatim() -> None:
    for wire in (user(0), model(0), result(0)):
        stored = wire["data"] if wire["type"] == "user/message" else wire["data"]["message"]
        for form in (wire, SessionEvent.from_dict(wire)):
            message = derive_event_message(form)
            assert json.dumps(message) == json.dumps(stored)


def test_nothing_is_derived_from_other_events_and_from_empty_model_messages() -> None:
    for wire in (note(0), model(0, content=[])):
        assert derive_event_message(wire) is None
    empty_user = user(0)
    empty_user["data"]["content"] = []
    assert derive_event_message(empty_user) == empty_user["data"]
