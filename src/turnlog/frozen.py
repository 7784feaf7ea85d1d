"""JSON values that cannot be changed by mistake.

`FrozenDict` and `FrozenList` are subclasses of dict and list whose mutators raise, so `json.dumps`,
`==`, indexing, `match` and iteration treat them as the plain ones. They guard against accidents, not
against force: an event keeps its canonical JSON bytes, and whatever is done to a decoded value never
reaches them. No function here recurses without bound, so depth is no limit.
"""

from __future__ import annotations

from typing import Any, NoReturn

_SHALLOW = 64
"""Levels handled by plain recursion, which is several times faster than an explicit stack."""


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} cannot be changed; take to_dict() or thaw() for a copy")


class FrozenDict(dict[str, Any]):
    """A dict with str keys that refuses every mutator with TypeError."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def to_dict(self) -> dict[str, Any]:
        """A plain, mutable copy."""
        return thaw(self)  # type: ignore[no-any-return]


class FrozenList(list[Any]):
    """A list that refuses every mutator with TypeError."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: object) -> FrozenList:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (list(self),))

    def to_list(self) -> list[Any]:
        """A plain, mutable copy."""
        return thaw(self)  # type: ignore[no-any-return]


def freeze(value: Any) -> Any:
    """The value with each plain dict and list replaced by a frozen one; scalars as they are."""
    return _convert(value, FrozenDict, FrozenList, _SHALLOW)


def thaw(value: Any) -> Any:
    """A plain, mutable copy of the value: dicts and lists new at every level."""
    return _convert(value, dict, list, _SHALLOW)


def unfreeze(value: Any) -> Any:
    """The value with our own frozen containers as plain ones; containers of other types stay as they are.

    Recurses: RecursionError for what is very deep or a cycle.
    """
    if type(value) is dict or isinstance(value, FrozenDict):
        return {
            key: unfreeze(item) if isinstance(item, (dict, list)) else item
            for key, item in value.items()
        }
    if type(value) is list or isinstance(value, FrozenList):
        return [unfreeze(item) if isinstance(item, (dict, list)) else item for item in value]
    return value


def _convert(value: Any, new_dict: Any, new_list: Any, levels: int) -> Any:
    if isinstance(value, dict):
        if not levels:
            return _convert_deep(value, new_dict, new_list)
        return new_dict(
            {
                key: _convert(item, new_dict, new_list, levels - 1)
                if isinstance(item, (dict, list))
                else item
                for key, item in value.items()
            }
        )
    if isinstance(value, list):
        if not levels:
            return _convert_deep(value, new_dict, new_list)
        return new_list(
            [
                _convert(item, new_dict, new_list, levels - 1)
                if isinstance(item, (dict, list))
                else item
                for item in value
            ]
        )
    return value


def _convert_deep(value: Any, new_dict: Any, new_list: Any) -> Any:
    """The same with an explicit stack: containers are filled through the base types' own methods."""

    def empty(source: Any) -> Any:
        return new_dict() if isinstance(source, dict) else new_list()

    result = empty(value)
    todo = [(value, result)]
    while todo:
        source, target = todo.pop()
        pairs = source.items() if isinstance(source, dict) else enumerate(source)
        for key, item in pairs:
            copy = item
            if isinstance(item, (dict, list)):
                copy = empty(item)
                todo.append((item, copy))
            if isinstance(target, dict):
                dict.__setitem__(target, key, copy)
            else:
                list.append(target, copy)
    return result
