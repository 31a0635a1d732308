"""Pipelines: Python stages with exchanges between them."""

from .finishing import Result
from .plan import Pipeline
from .run_statistics import ExchangeStatistics, RunStatistics
