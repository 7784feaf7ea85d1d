"""Exceptions as the log tells them: how a turn ended, and a failure with its code."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from turnlog.lossless import is_safe_integer


def end_reason(error: BaseException) -> dict[str, Any]:
    """How a turn ended that this exception ended.

    An Exception is an error with its own code; leaving the program or a generator is `disposed`; any other
    interruption (KeyboardInterrupt, a cancelled task of any async library) is the user's.
    """
    if isinstance(error, Exception):
        return {"kind": "error", "error": llm_failure(error)}
    disposed = isinstance(error, (GeneratorExit, SystemExit))
    return {"kind": "aborted", "reason": {"kind": "disposed" if disposed else "user"}}


def llm_failure(error: BaseException) -> dict[str, Any]:
    """The exception as the format's `{message, code, status?, providerRetryAfterMs?, requestId?}`.

    Whatever the exception carries, the outcome can be logged: attributes with other values are left out.
    """
    failure: dict[str, Any] = {"message": text_of(error), "code": code_of(error, "UNKNOWN")}
    status = _attribute(error, "status")
    if isinstance(status, int) and 100 <= status <= 599:
        failure["status"] = int(status)
    delay = _attribute(error, "provider_retry_after_ms")
    if (is_safe_integer(delay) or (type(delay) is float and math.isfinite(delay))) and delay > 0:
        failure["providerRetryAfterMs"] = delay
    request_id = _attribute(error, "request_id")
    if isinstance(request_id, str) and request_id:
        failure["requestId"] = str.__str__(request_id)
    return failure


def _attribute(error: BaseException, name: str) -> Any:
    with suppress(Exception):
        return getattr(error, name, None)
    return None


def text_of(error: BaseException) -> str:
    """The exception's text, or its type's name: an exception that cannot be printed is told of as well."""
    text = ""
    with suppress(Exception):
        text = str.__str__(str(error))
        if isinstance(error, BaseExceptionGroup):
            text += f" [{'; '.join(map(text_of, error.exceptions))}]"
    return text or type(error).__name__


def code_of(error: BaseException, otherwise: str) -> str:
    """The exception's own code where it has one, a non-empty str; else the given one."""
    code = _attribute(error, "code")
    return str.__str__(code) if isinstance(code, str) and code else otherwise


def add_note(error: BaseException, failure: Exception) -> None:
    """Tell on the exception that goes on what else went wrong while closing."""
    code = code_of(failure, type(failure).__name__)
    error.add_note(f"turnlog: while closing: [{code}] {text_of(failure)}")
