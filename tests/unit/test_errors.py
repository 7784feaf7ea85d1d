"""The exception tree: stable codes, plain fields, and a way through pickle for each class."""

from __future__ import annotations

import copy
import pickle

import pytest

from turnlog import errors
from turnlog.errors import TurnlogError
from turnlog.session import Session


def classes(root: type[TurnlogError]) -> list[type[TurnlogError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in classes(child))]


OWN = [kind for kind in classes(TurnlogError) if kind.__module__ == "turnlog.errors"]


@pytest.mark.parametrize("kind", OWN)
def test_every_error_survives_pickling(kind: type[TurnlogError]) -> None:
    error = kind("it broke", code="SPECIAL", session_id="s", path="/p", seq=3, line=None, owner="o")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (again.message, again.code, again.details) == (
            error.message,
            error.code,
            error.details,
        )
        assert str(again) == "it broke"
        assert again.args == error.args


@pytest.mark.parametrize("kind", OWN)
def test_every_error_has_an_upper_case_code_of_its_own(kind: type[TurnlogError]) -> None:
    assert kind("x").code == kind.default_code
    assert kind.default_code == kind.default_code.upper()
    assert "default_code" in vars(kind)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    drawn = (errors.__doc__ or "").split()
    assert {kind.__name__ for kind in OWN} <= set(drawn)


def test_to_dict_leaves_out_what_is_absent() -> None:
    error = errors.CorruptLogError("bad", session_id="s", line=2, offset=None)
    assert error.to_dict() == {
        "code": "CORRUPT_LOG",
        "message": "bad",
        "session_id": "s",
        "line": 2,
    }
    assert (error.line, error.offset, error.path) == (2, None, None)


def test_an_error_raised_in_earnest_survives_pickling() -> None:
    session = Session.create("s")
    with pytest.raises(errors.SurfaceError) as caught:
        session.append(
            "user/message", {"id": "m", "role": "user", "content": [], "source": {"kind": "user"}}
        )
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.seq) == ("OP_MISSING", 0)
