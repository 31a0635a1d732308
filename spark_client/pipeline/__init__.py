"""Pipelines: steps over Arrow data with exchanges between them, as a plan that is checked before anything runs.

Guarantee: the DataFrame of :meth:`Pipeline.toDF` has exactly the rows that Spark would give for the same steps;
``exchange(n, *keys)`` puts each row in the partition of ``repartition(n, *keys)``. A step that cannot work raises
when it is added, not in a task. Works on Spark Classic and Spark Connect.

Where the steps are
    :class:`Pipeline` has a method for each; the method is a function of

    ====================  ==========================================================================================
    ``mapping``           ``mapInArrow``, ``mapInPandas``, ``filter``, ``select``: a batch at a time
    ``grouping_steps``    ``applyInArrow``, ``applyInPandas``: the rows of a key together, also of a ``cogroup``
    ``joining_steps``     ``join``, ``cogroup``: the rows of two pipelines together
    ``aggregating``       ``aggregate``, ``distinct``
    ``combining``         ``union``, ``limit``, ``count``
    ``exchanging``        ``exchange``: rows to partitions, by keys or ranges, in an order; ``sample_boundaries``
    ``finishing``         ``toDF``, ``collect``, ``persist``, ``explain``: runs the plan
    ====================  ==========================================================================================

Processes
    One Python worker runs consecutive stages in one pass: before the first exchange as a ``mapInArrow`` over the
    DataFrame or over its part of a scan, after one over rows that it reads from the service. If an exchange is the
    first step over a DataFrame, Spark hashes its keys; after a stage or a scan the task does (``placement.hashing``).

Jobs
    ``toDF`` runs one Spark job for each exchange, drops each dataset when the last job that reads it has sealed, and
    returns when all have. An exchange that a plan uses several times runs once. Each use of the DataFrame runs the
    stages after the last exchange. ``jobs.results`` says when the last datasets are dropped. ``collect`` runs one more
    job, which writes the result, unless the last step is an exchange. A job that reads little runs in the driver
    (``in_driver``), and so do the last steps of ``collect`` and ``count``. When a job fails, all are dropped and
    Spark's exception is raised, which ends with the task's error; Ctrl-C cancels the job, too.

Reading tasks
    A Spark task reads several partitions where that is cheaper (``jobs.shares``), and calls each function once for
    every one of them. Several tasks share a partition far over the median where the steps allow it (``jobs.skew``), and
    call each function once for every piece, with the same ``TaskContext.partitionId()``. ``toDF`` directly after an
    exchange has one Spark partition for each of the exchange.

Memory
    A stage that needs more than a batch (groups, joins, sorts, aggregates) gathers rows within the task's budget
    (``spill.TaskMemory``), and the rest in files.

Groups
    ``applyInArrow`` groups by the keys of the exchange before it. A row whose key a stage between the two changes
    stays in its partition. A group whose key belongs to another partition is an error, which names the stage and the
    key.

Joins and cogroups
    ``join`` and ``cogroup`` read the same partitions of two exchanges side by side. ``join`` adds exchanges that are
    missing; keys of two types are placed by their common one (``joining.join_keys``). A side that ends with an
    exchange by the join's keys is not sent again; a row whose key a stage after it has changed is an error, as for
    groups. A side that turns out small is held by the tasks of the join, instead of an exchange of the other one
    (``held_joins``).

Order
    ``exchange(…, sort=…)`` sorts each partition when it is read. A stage that takes batch after batch keeps that
    order, groups have their rows in it, and a join or an aggregate promises none. ``toDF`` and ``collect`` give the
    partitions in turn, so rows that are placed by range and sorted are sorted as a whole.

Aggregates
    ``aggregate`` and ``distinct`` reduce the rows of each task before an exchange by the keys, and merge the tasks'
    groups after it (``reducing``). Rows that an exchange or a join has placed by some of the keys stay where they are.

Functions get batches within Spark's ``spark.sql.execution.arrow.maxRecordsPerBatch`` and ``maxBytesPerBatch``, as
they are set when ``toDF`` is called.
"""

from .finishing import broadcast_rows
from .plan import Pipeline
from .run_statistics import ExchangeStatistics, RunStatistics
