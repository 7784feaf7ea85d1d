"""Examining a store: every log is read, nothing is changed but by `collect_blobs`.

What is said of a medium's own files and rows is found out apart from its storage: they are no part of the storage
contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from turnlog.clock import Clock, system_clock
from turnlog.codec.record import encode_batch
from turnlog.engine.blobs import BlobInfo, BlobStore, find_references
from turnlog.engine.listing import SessionFilter
from turnlog.engine.names import lock_name
from turnlog.engine.protocol import Storage, StoredSession
from turnlog.errors import StorageError, TurnlogError
from turnlog.header import FORMAT_VERSION
from turnlog.lossless import canonicalize
from turnlog.query.doctor.leases import lock_concerns
from turnlog.query.doctor.report import Concern, Report, count

_EVERY = 2**53 - 1

Progress = Callable[[Sequence[str]], Iterable[str]]
"""Gives the ids back one by one, and may show how far that is."""


def examine(
    storage: Storage,
    *,
    clock: Clock = system_clock,
    progress: Progress = lambda ids: ids,
) -> Report:
    """Look at everything in a store, each log included. Raises `StorageError` for one that cannot be opened."""
    entries = storage.list()
    ids = [entry.header.id for entry in entries if entry.header is not None]
    report = _medium(storage, entries, ids, clock())
    report.versions["logFormat"] = FORMAT_VERSION
    infos = storage.browse(SessionFilter(archived=None), limit=_EVERY).sessions
    report.sessions = len(ids)
    report.archived = sum(info.notes.archived for info in infos)
    report.events = sum(info.progress.events for info in infos)
    reader = _Reader(storage)
    for id_ in progress(ids):
        reader.read(id_)
    unreadable = [entry for entry in entries if entry.header is None]
    report.damaged = len(unreadable) + len(reader.damaged)
    report.concerns = [
        *_damage_concerns(unreadable, reader),
        *report.concerns,
        *_blob_concerns(storage, report, reader, unreadable, clock()),
    ]
    return report


def collect_blobs(
    storage: Storage, *, clock: Clock = system_clock, progress: Progress = lambda ids: ids
) -> Sequence[BlobInfo]:
    """Remove the blobs that no log names and that are an hour old; those removed.

    Raises `StorageError` (`UNREADABLE_LOGS`) while a session cannot be read: nobody knows what it names.
    """
    entries = storage.list()
    reader = _Reader(storage)
    for id_ in progress([entry.header.id for entry in entries if entry.header is not None]):
        reader.read(id_)
    blind = [*reader.blind, *(entry.location for entry in entries if entry.header is None)]
    if blind:
        raise StorageError(
            f"nothing was collected, because what {len(blind)} damaged sessions refer to is unknown "
            f"({', '.join(blind[:3])}); repair or remove them first",
            code="UNREADABLE_LOGS",
            places=blind,
        )
    return _collect(storage, reader.references, clock, dry_run=False)


def _collect(
    storage: Storage, references: Iterable[str], clock: Clock, *, dry_run: bool
) -> Sequence[BlobInfo]:
    texts = [f"sha256:{digest}".encode() for digest in references]
    return BlobStore(storage, clock=clock).collect(texts, dry_run=dry_run)


class _Reader:
    """Reads logs one by one and keeps what is to be said of them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.damaged: dict[str, str] = {}
        self.torn: list[str] = []
        self.open_turns: list[str] = []
        self.blind: list[str] = []
        """Sessions that may name blobs which we cannot see."""
        self.references: set[str] = set()

    def read(self, id_: str) -> None:
        try:
            stored = self._storage.inspect(id_, close_turn=False)
        except (TurnlogError, OSError) as error:
            self.damaged[id_] = error.message if isinstance(error, TurnlogError) else str(error)
            self._read_damaged(id_)
            return
        self.references |= find_references([encode_batch(stored.log.view())])
        if stored.torn is not None:
            self.torn.append(id_)
            self._read_damaged(id_)
        elif stored.state.open_turn is not None:
            self.open_turns.append(id_)

    def _read_damaged(self, id_: str) -> None:
        """What a damaged log still names: its text as it is, and what can be decoded of it."""
        try:
            salvage = self._storage.salvage(id_)
            texts = [canonicalize(wire)[0] for wire in salvage.events]
            texts.append(self._storage.read_raw(id_).content)
        except (TurnlogError, OSError, IndexError):
            self.blind.append(id_)
        else:
            self.references |= find_references(texts)


def _damage_concerns(unreadable: Sequence[StoredSession], reader: _Reader) -> Iterator[Concern]:
    for entry in unreadable:
        what = f"{entry.location} cannot be read: {entry.damage}"
        do = "see `turnlog verify`; keep the file, or move it out of the store"
        yield Concern("attention", "damaged", what, do, [entry.location])
    for id_, reason in reader.damaged.items():
        do = f"`turnlog verify {id_}` lists the faults, `turnlog repair --salvage {id_}` copies what is sound"
        yield Concern("attention", "damaged", f"session {id_} is damaged: {reason}", do, [id_])
    do = "nothing: a resume repairs it, or `turnlog repair ID`"
    if reader.torn:
        what = f"{count(reader.torn, 'log')} with a torn end, as a crash leaves it"
        yield Concern("note", "torn", what, do, reader.torn)
    if reader.open_turns:
        what = (
            f"{count(reader.open_turns, 'session')} with an open turn: crashed, or at work just now"
        )
        yield Concern("note", "open-turn", what, do, reader.open_turns)


def _blob_concerns(
    storage: Storage,
    report: Report,
    reader: _Reader,
    unreadable: Sequence[StoredSession],
    now: int,
) -> Iterator[Concern]:
    blobs = storage.list_blobs()
    report.blobs = len(blobs)
    report.parts["blobs"] = sum(blob.size for blob in blobs)
    garbage = _collect(storage, reader.references, lambda: now, dry_run=True)
    if garbage:
        size = sum(blob.size for blob in garbage)
        what = f"{count(garbage, 'blob')} ({size:,} bytes) that no log names"
        do = "`turnlog doctor --collect` removes them"
        if reader.blind or unreadable:
            do += ", once the damaged sessions are repaired or gone: these may name them"
        yield Concern("attention", "blobs", what, do, [blob.digest for blob in garbage])


def _medium(
    storage: Storage, entries: Sequence[StoredSession], ids: Sequence[str], now: int
) -> Report:
    from turnlog.storage.jsonl import JsonlStorage

    if isinstance(storage, JsonlStorage):
        from turnlog.query.doctor.jsonl import examine_root

        return examine_root(storage.root, entries, ids, now)
    from turnlog.storage.sqlite import SqliteStorage

    if isinstance(storage, SqliteStorage):
        from turnlog.query.doctor.sqlite import examine_database

        report = examine_database(storage.path)
        locks = storage.path.with_name(storage.path.name + ".locks")
        report.concerns += lock_concerns(locks, {lock_name(id_) for id_ in ids})
        return report
    return Report("memory", "this process")
