"""The codec: bytes to core objects and back."""

from turnlog.codec.chunk_rows import decode_storage_record, pack_chunk_runs

__all__ = ["decode_storage_record", "pack_chunk_runs"]
