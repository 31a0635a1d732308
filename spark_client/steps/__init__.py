"""Steps: the work of a Spark task on a partition's rows, stage by stage, between reading and writing."""

from .aggregate_stage import FinalStage, MergeStage, PartialStage
from .asof_stage import AsofStage
from .batch_stages import (
    AlignStage,
    CountStage,
    FilterStage,
    KeepStage,
    LimitStage,
    MapStage,
    SelectStage,
    evaluate,
)
from .group_stage import GroupStage
from .join_stage import JoinStage, TableJoinStage
from .key_groups import GroupedSide
from .one_pass import NO_LIMITS, BatchLimits, Both, Count, OwnStage, Pass, Stage, run
from .pandas_adapters import PandasForm, PandasGroup, PandasMap
from .sample_stage import SampleStage
from .session_settings import with_settings
from .sort_stage import SortStage, TopStage
from .task_reports import REPORTS, SPARK_REPORTS, reported, reports_of
