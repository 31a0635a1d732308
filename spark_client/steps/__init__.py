"""Steps: the work of a Spark task on a partition's rows, stage by stage, between reading and writing."""

from .aggregate_stage import FinalStage, MergeStage, PartialStage
from .asof_stage import AsofStage
from .expression_stages import FilterStage, SelectStage, evaluate
from .group_stage import CogroupStage, GroupStage
from .join_stage import JoinStage
from .key_groups import GroupedSide
from .limits import NO_LIMITS, BatchLimits
from .map_stage import MapStage
from .one_pass import Both, Kept, Pass, Stage, run
from .pandas_adapters import PandasCogroup, PandasForm, PandasGroup, PandasMap
from .row_stages import AlignStage, CountStage, LimitStage
from .sample_stage import SampleStage
from .session_settings import with_settings
from .sort_stage import SortStage, TopStage
from .table_join_stage import HasTable, TableJoinStage
