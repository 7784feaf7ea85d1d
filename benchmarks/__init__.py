"""Benchmarks: `python -m benchmarks [name...]`; without names all of them. See `docs/performance.md`.

Every figure is a median of interleaved rounds, and every bar is a ratio to a yardstick that was measured in the
same rounds, because absolute times of a shared machine say little.
"""
