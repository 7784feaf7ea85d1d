"""What turn, step and call share: a scope that is entered and left, with and without asyncio.

However it is left, what is open is closed; an exception on its way out wins over what goes wrong while closing,
and carries that as a note.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from turnlog.recorder.outcome import add_note
from turnlog.session import Session


class Scope:
    """What turn, step and call share: entering and leaving, with and without asyncio."""

    _session: Session
    _durable: bool
    _flushes_on_enter = False
    _flushes_on_exit = False
    _is_async = False
    _open = False

    def _enter(self) -> None:
        """Append what opens the scope, or raise with nothing appended."""
        raise NotImplementedError

    def _close(self, error: BaseException | None) -> bool:
        """Append what closes the scope, if it is open; True when the exception ends here."""
        raise NotImplementedError

    def _flush(self) -> None:
        if self._durable and self._session.is_durable:
            self._session.flush()

    async def _flush_async(self) -> None:
        if self._durable and self._session.is_durable:
            import asyncio  # here, because it takes longer to import than all of turnlog

            await asyncio.to_thread(self._session.flush)

    def __enter__(self) -> Self:
        self._enter()
        try:
            if self._flushes_on_enter:
                self._flush()
        except BaseException as error:
            # A block that was not entered is not left either: this is the only chance to close it.
            self._close_quietly(error)
            raise
        return self

    async def __aenter__(self) -> Self:
        self._is_async = True
        self._enter()
        try:
            if self._flushes_on_enter:
                await self._flush_async()
        except BaseException as error:
            self._close_quietly(error)
            raise
        return self

    def _leave(self, error: BaseException | None) -> bool:
        was_open = self._open
        try:
            handled = self._close(error)
            if was_open and self._flushes_on_exit:
                self._flush()
        except BaseException as failure:  # noqa: BLE001 - raised again, or noted on the one that goes on
            return self._failed_to_close(error, failure)
        return handled

    async def _leave_async(self, error: BaseException | None) -> bool:
        was_open = self._open
        try:
            handled = self._close(error)
            if was_open and self._flushes_on_exit:
                # A coroutine that is being closed may not wait for anything any more.
                if isinstance(error, GeneratorExit):
                    self._flush()
                else:
                    await self._flush_async()
        except BaseException as failure:  # noqa: BLE001 - as above
            return self._failed_to_close(error, failure)
        return handled

    def _failed_to_close(self, error: BaseException | None, failure: BaseException) -> bool:
        if not isinstance(failure, Exception):
            # Interrupted while closing, perhaps by a second Ctrl-C: what is still open is closed all the same.
            self._close_quietly(failure)
            raise failure
        if error is None:
            raise failure
        add_note(error, failure)
        return False

    def _close_quietly(self, error: BaseException) -> None:
        try:
            self._close(error)
        except Exception as failure:  # noqa: BLE001 - the error at hand is the one to tell of
            add_note(error, failure)


class Bracket(Scope):
    """A turn or a step, which never swallows an exception; said in its types, for who returns from inside it."""

    _flushes_on_exit = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._leave_async(error)
