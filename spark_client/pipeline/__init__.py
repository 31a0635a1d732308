"""Pipelines: Python stages with exchanges between them."""

from .plan import Pipeline
from .run_statistics import ExchangeStatistics, RunStatistics
from .scoped_result import Result
