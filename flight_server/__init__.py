"""An asyncio Arrow Flight server that keeps each partition once and sends it to any number of readers."""
