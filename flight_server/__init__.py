"""A standalone asyncio Arrow Flight server that keeps each partition once and fans it out."""
