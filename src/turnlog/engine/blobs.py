"""Blobs: large payloads and images by content, each stored once.

An event refers to a blob by `sha256:<64 hex>` (the harnesses' `attachmentId`), anywhere in its payload, so no
event ever carries the bytes and compaction or a fork copies none. A blob that no stored log names is garbage;
collecting spares young ones, because their event may not be written yet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.errors import StorageError

_REFERENCE = re.compile(rb"sha256:([0-9a-f]{64})")
GRACE_MS = 60 * 60 * 1000
"""How old an unreferenced blob must be before it is collected: one hour."""


class BlobInfo(msgspec.Struct, frozen=True):
    """A stored blob. `digest`: SHA-256 in lower-case hex. `size`: bytes. `stored_at`: Unix milliseconds."""

    digest: str
    size: int
    stored_at: int


class BlobMedium(Protocol):
    """What a storage does for blobs. Digests are lower-case hex; the caller has checked them."""

    def put_blob(self, digest: str, data: bytes) -> None:
        """Store the bytes durably under the digest, in place of others if those there are damaged.

        Where they are stored already they count as stored now, so that they are spared by `collect` again.
        """

    def get_blob(self, digest: str) -> bytes | None:
        """The bytes, or None."""

    def list_blobs(self) -> Sequence[BlobInfo]:
        """Every stored blob, in no particular order."""

    def delete_blob(self, digest: str) -> None:
        """Remove the blob durably; does nothing where there is none."""


class BlobStore:
    """The blobs of a store: `put` gives the reference that events carry, `get` takes it. Thread-safe."""

    def __init__(self, medium: BlobMedium, *, clock: Clock = system_clock) -> None:
        self._medium = medium
        self._clock = clock

    def put(self, data: bytes) -> str:
        """Store the bytes, durably on return; their reference `sha256:<hex>`."""
        digest = hashlib.sha256(data).hexdigest()
        self._medium.put_blob(digest, data)
        return f"sha256:{digest}"

    def get(self, reference: str) -> bytes:
        """The bytes of a reference.

        Raises `StorageError`: `BLOB_NOT_FOUND`, `INVALID_BLOB_REFERENCE`, or `DAMAGED_BLOB` when what is stored
        is not what the reference says.
        """
        match = _REFERENCE.fullmatch(reference.encode("utf-8", "surrogatepass"))
        if match is None:
            raise StorageError(
                f"{reference[:80]!r} is no blob reference (sha256: and 64 hex digits)",
                code="INVALID_BLOB_REFERENCE",
            )
        digest = match[1].decode()
        data = self._medium.get_blob(digest)
        if data is None:
            raise StorageError(f"no blob {reference}", code="BLOB_NOT_FOUND")
        if hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"blob {reference} is damaged", code="DAMAGED_BLOB")
        return data

    def all(self) -> Sequence[BlobInfo]:
        """Every stored blob."""
        return self._medium.list_blobs()

    def collect(
        self, texts: Iterable[bytes], *, grace_ms: int = GRACE_MS, dry_run: bool = False
    ) -> Sequence[BlobInfo]:
        """Remove the blobs that none of the texts names, and that are older than the grace; those removed.

        `texts` are the stored texts of *all* logs; with `dry_run` nothing is removed.
        """
        used = find_references(texts)
        oldest = self._clock() - grace_ms
        garbage = [
            blob
            for blob in self._medium.list_blobs()
            if blob.digest not in used and blob.stored_at <= oldest
        ]
        if not dry_run:
            for blob in garbage:
                self._medium.delete_blob(blob.digest)
        return garbage


def find_references(texts: Iterable[bytes]) -> set[str]:
    """The digests of all blobs that the texts refer to."""
    return {match.decode() for text in texts for match in _REFERENCE.findall(text)}
