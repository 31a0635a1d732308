"""Pipelines: steps over Arrow data with exchanges between them, as a plan that is checked before anything runs.

Guarantee: the DataFrame of :meth:`Pipeline.toDF` has exactly the rows that Spark would give for the same steps;
``repartition(n, *keys)`` puts each row in the partition of Spark's. Methods have the names and arguments of PySpark's
wherever they do the same (``spark_names`` says what to write instead of those that are not here). A step that cannot
work raises when it is added, not in a task. Works on Spark Classic and Spark Connect. The README beside this file says
what jobs, tasks and memory a plan takes, and how long results stay.

Where the steps are
    :class:`Pipeline` has a method for each; the method is a function of

    ====================  ==========================================================================================
    ``mapping``           ``mapInArrow``, ``mapInPandas``, ``filter``, ``select``, ``withColumn``: a batch at a time
    ``exchanging``        ``repartition``, ``repartitionByRange``: rows to partitions, by keys or ranges (``ranges``);
                          ``sortWithinPartitions``, ``orderBy``
    ``grouping_steps``    ``groupBy``: aggregates and functions of the rows of a key together, also of a ``cogroup``
    ``aggregating``       what ``agg``, ``distinct`` and ``dropDuplicates`` compute
    ``joining_steps``     ``join``: the rows of two pipelines together
    ``combining``         ``union``, ``limit``
    ``looking``           ``show``, ``head``, ``toArrow``, ``toPandas``: columns, first rows, results
    ``finishing``         ``toDF``, ``toLocalIterator``, ``count``, ``persist``, ``explain``: runs the plan
    ====================  ==========================================================================================

    They make a plan of ``nodes``. ``execution`` runs it, after ``moved_filters`` and ``needed_columns`` have made a
    smaller one of it: ``decided_jobs`` says by which jobs, ``held_joins`` which
    sides of joins need no exchange, and ``in_driver`` what the driver does itself.

Processes
    One Python worker runs consecutive stages in one pass: before the first exchange as a ``mapInArrow`` over the
    DataFrame or over its part of a scan, after one over rows that it reads from the service. The
    task hashes an exchange's keys as Spark does (``placement.hashing``).

Keys
    Groups and joins add exchanges that are missing, by the common type of keys of two types (``joining.join_keys``).
    Rows that an exchange has placed by these keys are not sent again. A row whose key a function between the two
    changes stays in its partition, and is an error there, which names the stage and the key.

Order
    ``sortWithinPartitions`` after ``repartition`` sorts each partition when it is read. A stage that takes batch after
    batch keeps that order, groups have their rows in it, and a join or an aggregate promises none. ``toDF`` and
    ``toArrow`` give the partitions in turn, so rows that are placed by range and sorted, as by ``orderBy``, are sorted
    as a whole.
"""

from .finishing import broadcast_rows
from .grouping_steps import CogroupedPipeline, GroupedPipeline
from .plan import Pipeline
from .run_statistics import ExchangeStatistics, RunStatistics
