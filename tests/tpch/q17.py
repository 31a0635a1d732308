"""What small orders of a part bring in a year: a Python function compares a part's rows with their mean."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select sum(l_extendedprice) / 7.0 as avg_yearly
from lineitem, part
where p_partkey = l_partkey and p_brand = 'Brand#23' and p_container = 'MED BOX'
    and l_quantity < (select 0.2 * avg(l_quantity) from lineitem where l_partkey = p_partkey)
"""


def q17(tables: Tables) -> Pipeline:
    """See the module."""
    parts = tables.scan(
        "part", ["p_partkey"], (field("p_brand") == "Brand#23") & (field("p_container") == "MED BOX")
    )

    def small_orders(of_part: pa.Table) -> pa.Table:
        quantity = of_part["l_quantity"].cast("double")
        return of_part.filter(pc.less(quantity, 0.2 * pc.mean(quantity).as_py())).select(["l_extendedprice"])

    return (
        tables.scan("lineitem", ["l_partkey", "l_quantity", "l_extendedprice"])
        .join(tables.broadcast(parts), on={"l_partkey": "p_partkey"}, how="semi")
        .groupBy("l_partkey", numPartitions=2)
        .applyInArrow(small_orders, "l_extendedprice decimal(15, 2)")
        .agg(price=("l_extendedprice", "sum"))
        .select(avg_yearly=field("price").cast("double") / 7.0)
    )
