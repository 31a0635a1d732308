"""Changelogs: latency and size under updates for ever, ingest, and lookups in micro-batches."""
