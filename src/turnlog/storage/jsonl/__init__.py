"""JSONL storage: the harnesses' own directory layout and files."""

from turnlog.storage.jsonl.storage import JsonlStorage

__all__ = ["JsonlStorage"]
