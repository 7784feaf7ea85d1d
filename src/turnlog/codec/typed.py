"""The fast path of reading: blocks of lines decoded into Structs and proved canonical.

One C call decodes a block of lines and one encodes it again; equal bytes prove that every line is one record
in canonical text, with no duplicate key, no odd number and nothing hidden in it. The Structs are views for
checking, never the store: the bytes are kept. Whatever this path refuses, for any reason, is read line by
line by the strict one, which decides.

Surface keys come in two orders in files (appends write sourceEventSeqs first, crash repair surfaceOp): a block
that does not fit the first is tried in the second.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from turnlog.lossless import SAFE_INTEGER, exact_float, has_long_digits
from turnlog.vocabulary import KNOWN_TYPES, SURFACE_TYPES

Seq = Annotated[int, Meta(ge=0, le=SAFE_INTEGER)]
Time = Annotated[int, Meta(ge=-SAFE_INTEGER, le=SAFE_INTEGER)]

# Bounds that keep every running time of a row safe without adding it up: 2**51 + 2**20 * 2**31 < 2**53.
_RowTime = Annotated[int, Meta(ge=-(2**51), le=2**51)]
_RowStep = Annotated[int, Meta(ge=-(2**31), le=2**31)]
_RowSeq = Annotated[int, Meta(ge=0, le=2**51)]
_MAX_MEMBERS = 2**20
_Steps = Annotated[list[_RowStep], Meta(max_length=_MAX_MEMBERS)]
_Texts = Annotated[list[str], Meta(min_length=1, max_length=_MAX_MEMBERS)]


class _Closed(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A Struct that refuses keys it does not name, and that never takes part in a cycle."""


class _TextDelta(_Closed, tag_field="type", tag="text-delta"):
    index: int
    text: str


class _ReasoningDelta(_Closed, tag_field="type", tag="reasoning-delta"):
    index: int
    text: str


class _ToolCallDelta(_Closed, tag_field="type", tag="tool-call-delta"):
    index: int
    id: str
    name: str | UnsetType = UNSET
    argumentsDelta: str | UnsetType = UNSET


class _BlockStart(_Closed, tag_field="type", tag="block-start"):
    index: int
    blockType: str


class _BlockEnd(_Closed, tag_field="type", tag="block-end"):
    index: int
    block: Any


class _Usage(_Closed, tag_field="type", tag="usage"):
    usage: Any


class _Finish(_Closed, tag_field="type", tag="finish"):
    reason: Any
    replayState: Any = UNSET


class _ChunkData(_Closed):
    turn: int
    step: int
    chunk: (
        _TextDelta | _ReasoningDelta | _ToolCallDelta | _BlockStart | _BlockEnd | _Usage | _Finish
    )


class Chunk(_Closed, tag_field="type", tag="assistant/chunk"):
    """A streamed chunk on a line of its own."""

    seq: Seq
    time: Time
    data: _ChunkData


class _TextRowData(_Closed):
    turn: int
    step: int
    index: int
    dt: _Steps
    texts: _Texts


class _ToolRowData(_Closed):
    turn: int
    step: int
    index: int
    dt: _Steps
    id: str
    name: str | UnsetType = UNSET
    args: _Texts | UnsetType = UNSET

    @property
    def texts(self) -> list[str]:
        return [] if self.args is UNSET else self.args


class TextRow(
    _Closed, tag_field="type", tag="text-chunks", rename={"seq": "seq0", "time": "time0"}
):
    """A packed run of text deltas."""

    seq: _RowSeq
    time: _RowTime
    data: _TextRowData


class ReasoningRow(
    _Closed, tag_field="type", tag="reasoning-chunks", rename={"seq": "seq0", "time": "time0"}
):
    """A packed run of reasoning deltas."""

    seq: _RowSeq
    time: _RowTime
    data: _TextRowData


class ToolRow(
    _Closed, tag_field="type", tag="tool-call-chunks", rename={"seq": "seq0", "time": "time0"}
):
    """A packed run of tool-call deltas."""

    seq: _RowSeq
    time: _RowTime
    data: _ToolRowData


ROWS = frozenset({TextRow, ReasoningRow, ToolRow})


class Plain(_Closed):
    """Any event that cannot stand on the surface; the concrete classes are made below, one a type."""

    seq: Seq
    time: Time
    data: Any
    ignorable: Literal[True] | UnsetType = UNSET


class SourcesFirst(Plain):
    """A surface event with its keys in the order in which appends write them."""

    sourceEventSeqs: list[Seq] | UnsetType = UNSET
    surfaceOp: Any = UNSET


class OpFirst(Plain):
    """A surface event with its keys in the order in which crash repair writes them."""

    surfaceOp: Any = UNSET
    sourceEventSeqs: list[Seq] | UnsetType = UNSET


class _Turn(_Closed):
    turn: int


class _TurnStep(_Closed):
    turn: int
    step: int


class TurnStart(_Closed, tag_field="type", tag="turn/start"):
    """A turn opens."""

    seq: Seq
    time: Time
    data: _Turn


class StepStart(_Closed, tag_field="type", tag="step/start"):
    """A step opens."""

    seq: Seq
    time: Time
    data: _TurnStep


class StepEnd(_Closed, tag_field="type", tag="step/end"):
    """A step closes."""

    seq: Seq
    time: Time
    data: _TurnStep


TYPE_OF: dict[type, str] = {}
"""The event type that a generated class stands for."""


def _class_for(name: str, base: type[Plain]) -> type:
    cls = msgspec.defstruct(
        "_" + "".join(part.title() for part in name.replace("-", "/").split("/")),
        [],
        bases=(base,),
        tag_field="type",
        tag=name,
        gc=False,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )
    TYPE_OF[cls] = name
    return cls


_TYPED = {"assistant/chunk", "turn/start", "step/start", "step/end"}
_plain = [_class_for(name, Plain) for name in sorted(KNOWN_TYPES - SURFACE_TYPES - _TYPED)]
_shared = [Chunk, TurnStart, StepStart, StepEnd, TextRow, ReasoningRow, ToolRow, *_plain]


def _decoder(base: type[Plain]) -> msgspec.json.Decoder[Any]:
    surface = [_class_for(name, base) for name in sorted(SURFACE_TYPES)]
    return msgspec.json.Decoder(Union[tuple(_shared + surface)], float_hook=exact_float)  # noqa: UP007 - built at run time


_encode_lines = msgspec.json.Encoder().encode_lines

_ORDERS = (
    (_decoder(SourcesFirst), b'],"surfaceOp":'),
    (_decoder(OpFirst), b'"surfaceOp":"append","sourceEventSeqs":'),
)
"""The two orders of surface keys: how to decode each, and what a block in that order, and not the other, holds."""


class BlockDecoder:
    """Decodes the blocks of one file, trying the order of surface keys first that its last blocks had."""

    def __init__(self) -> None:
        self._likely = 0

    def decode(self, block: bytes) -> list[Any] | None:
        """The records of a block of whole lines, or None where this path cannot prove that it read them right."""
        records = _prove(block, _ORDERS[self._likely][0])
        if records is not None:
            return records
        decoder, mark = _ORDERS[1 - self._likely]
        records = _prove(block, decoder) if mark in block else None
        if records is not None:
            self._likely = 1 - self._likely
        return records


def _prove(block: bytes, decoder: msgspec.json.Decoder[Any]) -> list[Any] | None:
    try:
        records = decoder.decode_lines(block)
    except (ValueError, RecursionError):
        return None
    if has_long_digits(block) or _encode_lines(records) != block:
        return None
    return records
