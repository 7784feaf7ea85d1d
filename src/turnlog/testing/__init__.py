"""Helpers for tests of turnlog and of programs built on it: shipped, used by nothing else here."""
