"""Changelogs: latency and size under updates for ever, ingest, lookups in micro-batches, stops of the event loop."""
