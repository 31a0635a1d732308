"""Pipelines: Python stages with exchanges between them, made by ``ShuffleClient.pipeline``."""

from .plan import Pipeline

__all__ = [
    "Pipeline",
]
