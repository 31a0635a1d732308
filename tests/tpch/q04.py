"""Orders of a quarter with a line item that came late, by priority: EXISTS is a semi join."""

from __future__ import annotations

from datetime import date

from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select o_orderpriority, count(*) as order_count
from orders
where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'
    and exists (select * from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by o_orderpriority
order by o_orderpriority
"""


def q04(tables: Tables) -> Pipeline:
    """See the module."""
    ordered = field("o_orderdate")
    late = tables.scan("lineitem", ["l_orderkey"], field("l_commitdate") < field("l_receiptdate"))
    return (
        tables.scan(
            "orders",
            ["o_orderkey", "o_orderpriority"],
            (ordered >= date(1993, 7, 1)) & (ordered < date(1993, 10, 1)),
        )
        .join(late, on={"o_orderkey": "l_orderkey"}, how="semi")
        .groupBy("o_orderpriority")
        .agg(order_count=("*", "count"))
        .orderBy("o_orderpriority")
    )
