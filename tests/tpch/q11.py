"""Germany's most valuable stock: an aggregate that two steps read, one of them for a number of the driver."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select ps_partkey, sum(ps_supplycost * ps_availqty) as value
from partsupp, supplier, nation
where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY'
group by ps_partkey
having sum(ps_supplycost * ps_availqty) > (
    select sum(ps_supplycost * ps_availqty) * {fraction}
    from partsupp, supplier, nation
    where ps_suppkey = s_suppkey and s_nationkey = n_nationkey and n_name = 'GERMANY'
)
order by value desc
"""


def q11(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey"], field("n_name") == "GERMANY"))
    suppliers = tables.scan("supplier", ["s_suppkey", "s_nationkey"]).join(
        nation, on={"s_nationkey": "n_nationkey"}, how="semi"
    )
    stock = (
        tables.scan("partsupp", ["ps_partkey", "ps_suppkey", "ps_availqty", "ps_supplycost"])
        .join(tables.broadcast(suppliers), on={"ps_suppkey": "s_suppkey"}, how="semi")
        .select("ps_partkey", value=field("ps_supplycost") * field("ps_availqty"))
        .groupBy("ps_partkey")
        .agg(value=("value", "sum"))
        .persist()
    )
    (total,) = stock.agg(value=("value", "sum")).toArrow()["value"].to_pylist()
    large = field("value").cast(pa.decimal128(20, 2)) > total * Decimal("0.0001") / Decimal(str(tables.scale))
    return stock.filter(large).orderBy("value desc")
