"""The query side: stored and live sessions as one corpus."""
