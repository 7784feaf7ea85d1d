"""Interop: foreign and shared formats in, and exporters out; one module a format."""
