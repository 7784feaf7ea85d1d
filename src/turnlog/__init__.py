"""turnlog: an event-sourced session log for LLM agents.

A session is an append-only log of typed events; the messages sent to a model are derived from it through an
ordered surface; compaction shadows and never deletes. Start at `turnlog.open`.
"""

from __future__ import annotations
