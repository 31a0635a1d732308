"""Pipelines: Python stages with exchanges between them, made by ``ShuffleClient.pipeline``."""

from .plan import Pipeline
from .run_statistics import ExchangeStatistics, RunStatistics
from .scoped_result import Result

__all__ = [
    "ExchangeStatistics",
    "Pipeline",
    "Result",
    "RunStatistics",
]
