"""Pipelines: Python stages with exchanges between them."""

from .plan import Pipeline

__all__ = [
    "Pipeline",
]
