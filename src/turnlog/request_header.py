"""Request headers: what a model request was configured with, apart from its messages.

`{config: {provider, model, ...}, adapterDefaults?, system?, tools?}`, logged once and again on change. The
canonical form leaves out what is empty, so that two headers that mean the same request compare equal.
Nothing is validated by `canonical_header`; `check_request_header` is the rule for the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from turnlog.errors import EventError
from turnlog.frozen import FrozenDict, freeze
from turnlog.lossless import canonicalize, json_equal
from turnlog.messages import is_name

_CONFIG_FIELDS = ("provider", "model", "reasoningEffort", "temperature", "maxTokens")
_DEFAULTED_FIELDS = frozenset({"reasoningEffort", "maxTokens"})


def canonical_header(header: Mapping[str, Any]) -> FrozenDict:
    """The header as `{config, adapterDefaults?, system?, tools?}` in this key order.

    Empty `adapterDefaults`, `system` and `tools` are left out; `config` and `tools` are copied as they are.
    """
    form: dict[str, Any] = {"config": header.get("config")}
    for key, empty in (("adapterDefaults", {}), ("system", ""), ("tools", [])):
        value = header.get(key)
        if value is not None and value != empty:
            form[key] = value
    return freeze(canonicalize(form)[1])  # type: ignore[no-any-return]


def header_equals(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two headers configure the same request.

    `config` is compared field by field, `stop` in order (absent is not `[]`), and `tools` as compact JSON
    texts in order: the key order inside `parameters` counts, because it changes the prompt.
    """
    one, other = canonical_header(left), canonical_header(right)
    return (
        _config_equals(one["config"], other["config"])
        and json_equal(one.get("adapterDefaults", {}), other.get("adapterDefaults", {}))
        and one.get("system", "") == other.get("system", "")
        and canonicalize(one.get("tools", []))[0] == canonicalize(other.get("tools", []))[0]
    )


def _config_equals(left: Any, right: Any) -> bool:
    if not isinstance(left, dict) or not isinstance(right, dict):
        return json_equal(left, right)
    if ("stop" in left) != ("stop" in right) or not json_equal(left.get("stop"), right.get("stop")):
        return False
    return all(json_equal(left.get(name), right.get(name)) for name in _CONFIG_FIELDS)


def fold_request_header(events: Iterable[Any]) -> FrozenDict | None:
    """The canonical form of the last `request/header` among events or wire dicts, or None."""
    last = None
    for event in events:
        if _part(event, "type") == "request/header":
            last = event
    return None if last is None else canonical_header(_part(last, "data")["header"])


def _part(event: Any, name: str) -> Any:
    return event[name] if isinstance(event, Mapping) else getattr(event, name)


def check_request_header(data: Any) -> None:
    """Raise `EventError` unless the data of a `request/header` names its route and defaults soundly."""
    header = data.get("header") if isinstance(data, dict) else None
    config = header.get("config") if isinstance(header, dict) else None
    if not isinstance(header, dict) or not isinstance(config, dict):
        raise _fail("data.header.config must be an object")
    if data.get("reason") == "fallback":
        raise EventError(
            "request/header with reason 'fallback' is retired; write 'change'", code="RETIRED_EVENT"
        )
    for name in ("provider", "model"):
        if not is_name(config.get(name)):
            raise _fail(f"header.config.{name} must be a non-empty string")
    if "reasoningEffort" in config and not is_name(config["reasoningEffort"]):
        raise _fail("header.config.reasoningEffort must be a non-empty string or absent")
    if "adapterDefaults" in header:
        _check_defaults(header["adapterDefaults"], config)


def _check_defaults(defaults: Any, config: Mapping[str, Any]) -> None:
    if not isinstance(defaults, dict):
        raise _fail("header.adapterDefaults must be an object or absent")
    for name, value in defaults.items():
        if name not in _DEFAULTED_FIELDS:
            raise _fail(f"header.adapterDefaults.{name} is no field that an adapter can default")
        if value is not True or name not in config:
            raise _fail(f"header.adapterDefaults.{name} must be true, with the field in config")


def _fail(what: str) -> EventError:
    return EventError(f"request/header: {what}", code="INVALID_REQUEST_HEADER")
