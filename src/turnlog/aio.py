"""The asynchronous face: the same names as `turnlog.open`, awaitable where they do I/O.

Appending and reading a live session stay plain calls, because they touch memory only. What waits for a disk or
a lock runs on a worker thread, so a stalled disk never holds up the event loop. A cancelled `flush` loses
nothing: the write goes on, and what it does not reach is still pending for the next one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from turnlog.engine.listing import Order, Page, SessionFilter
from turnlog.engine.protocol import Salvage
from turnlog.eventlog import EventView
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.invariants import InvariantSettings
from turnlog.log import Turnlog, open  # noqa: A004 - `turnlog.open`, as `gzip.open`
from turnlog.messages import Message
from turnlog.query.corpus import SessionQuery, SessionRecord
from turnlog.recorder import Turn
from turnlog.session import Session
from turnlog.session_view import RequestView
from turnlog.storage.targets import Target
from turnlog.store import SessionStore
from turnlog.surface import SurfaceManager
from turnlog.usage import SessionUsage


class AsyncSession:
    """A live session; `flush` and `close` are awaited, everything else is as in `turnlog.Session`."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    @property
    def header(self) -> SessionHeader:
        """The session's header."""
        return self.session.header

    @property
    def seq(self) -> int:
        """The seq that the next event gets."""
        return self.session.seq

    @property
    def events(self) -> EventView:
        """The events so far."""
        return self.session.events

    @property
    def surface(self) -> SurfaceManager:
        """The surface."""
        return self.session.surface

    def append(self, type: str, data: Any, **options: Any) -> SessionEvent:
        """See `Session.append`."""
        return self.session.append(type, data, **options)

    def append_all(self, entries: Iterable[Mapping[str, Any]]) -> list[SessionEvent]:
        """See `Session.append_all`."""
        return self.session.append_all(entries)

    def append_message(
        self, message: Mapping[str, Any], *, replace: tuple[int, int] | None = None
    ) -> SessionEvent:
        """See `Session.append_message`."""
        return self.session.append_message(message, replace=replace)

    def append_user(self, content: str | Sequence[Mapping[str, Any]]) -> SessionEvent:
        """See `Session.append_user`."""
        return self.session.append_user(content)

    def append_assistant(
        self, content: str | Sequence[Mapping[str, Any]], *, provider: str, model: str
    ) -> SessionEvent:
        """See `Session.append_assistant`."""
        return self.session.append_assistant(content, provider=provider, model=model)

    def turn(self) -> Turn:
        """A recorded turn; use it with `async with`, which flushes on a worker thread."""
        return self.session.turn()

    def derive_messages(self) -> list[Message]:
        """See `Session.derive_messages`."""
        return self.session.derive_messages()

    def request_at(self, turn: int, step: int) -> RequestView:
        """See `Session.request_at`."""
        return self.session.request_at(turn, step)

    def usage(self) -> SessionUsage:
        """See `Session.usage`."""
        return self.session.usage()

    def title(self) -> str | None:
        """See `Session.title`."""
        return self.session.title()

    async def flush(self) -> None:
        """Return when every event so far is durable. Cancelling the wait does not cancel the write."""
        await asyncio.to_thread(self.session.flush)

    async def close(self) -> None:
        """Make everything durable and let go of the session."""
        await asyncio.to_thread(self.session.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Shielded: a cancelled task still leaves its session saved and free.
        await asyncio.shield(self.close())


class AsyncQuery:
    """`SessionQuery` with every read on a worker thread."""

    def __init__(self, query: SessionQuery) -> None:
        self._query = query

    async def list_sessions(self, *, damaged: bool = False) -> list[SessionRecord]:
        """See `SessionQuery.list_sessions`."""
        return await asyncio.to_thread(self._query.list_sessions, damaged=damaged)

    async def browse(
        self,
        wanted: SessionFilter | None = None,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """See `SessionQuery.browse`."""
        return await asyncio.to_thread(
            self._query.browse, wanted, order=order, cursor=cursor, limit=limit
        )

    async def read_session(self, id: str, *, close_turn: bool = True) -> Session:
        """See `SessionQuery.read_session`."""
        return await asyncio.to_thread(self._query.read_session, id, close_turn=close_turn)

    async def read_surface(self, id: str) -> SurfaceManager:
        """See `SessionQuery.read_surface`."""
        return await asyncio.to_thread(self._query.read_surface, id)

    async def salvage(self, id: str) -> Salvage:
        """See `SessionQuery.salvage`."""
        return await asyncio.to_thread(self._query.salvage, id)


class AsyncTurnlog:
    """`Turnlog` for asyncio. `sync` is the store behind it, for what needs no waiting."""

    def __init__(self, log: Turnlog) -> None:
        self.sync = log
        self.query = AsyncQuery(log.query)

    @property
    def sessions(self) -> SessionStore:
        """The live sessions."""
        return self.sync.sessions

    async def create(
        self,
        *,
        id: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AsyncSession:
        """See `Turnlog.create`."""
        return await _go_live(lambda: self.sync.create(id=id, cwd=cwd, meta=meta))

    async def resume(self, id: str, *, repair: bool = True) -> AsyncSession:
        """See `Turnlog.resume`."""
        return await _go_live(lambda: self.sync.resume(id, repair=repair))

    async def fork(
        self,
        id: str | Session | AsyncSession,
        boundary: int | None = None,
        *,
        child_id: str | None = None,
    ) -> AsyncSession:
        """See `Turnlog.fork`."""
        source = id.session if isinstance(id, AsyncSession) else id
        return await _go_live(lambda: self.sync.fork(source, boundary, child_id=child_id))

    async def flush(self) -> None:
        """See `Turnlog.flush`."""
        await asyncio.to_thread(self.sync.flush)

    async def close(self) -> None:
        """See `Turnlog.close`."""
        await asyncio.to_thread(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self.close())


async def _go_live(make: Callable[[], Session]) -> AsyncSession:
    """Make a session on a worker thread; one that nobody waits for any more is closed, or it would stay leased."""
    lock = threading.Lock()
    made: list[Session] = []
    abandoned = False

    def work() -> Session:
        session = make()
        with lock:
            made.append(session)
            unwanted = abandoned
        if unwanted:
            session.close()
        return session

    try:
        return AsyncSession(await asyncio.to_thread(work))
    except asyncio.CancelledError:
        with lock:
            abandoned = True
            late = tuple(made)
        for session in late:
            await asyncio.shield(asyncio.to_thread(session.close))
        raise


class _Opening:
    """What `aopen` gives: await it, or enter it with `async with`."""

    def __init__(self, opener: Callable[[], Turnlog]) -> None:
        self._opener = opener
        self._log: AsyncTurnlog | None = None

    async def _open(self) -> AsyncTurnlog:
        return AsyncTurnlog(await asyncio.to_thread(self._opener))

    def __await__(self) -> Generator[Any, None, AsyncTurnlog]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncTurnlog:
        self._log = await self._open()
        return self._log

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._log is not None  # entered
        await self._log.__aexit__(kind, error, trace)


def aopen(target: Target = None, *, invariants: bool | InvariantSettings = True) -> _Opening:
    """Open a store for asyncio: `async with turnlog.aopen(target) as log`, or `log = await turnlog.aopen(target)`.

    Targets and errors are those of `turnlog.open`.
    """
    return _Opening(lambda: open(target, invariants=invariants))
