"""The storages: JSONL files as the harnesses keep them, and memory."""
