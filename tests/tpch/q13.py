"""How many customers have how many orders: a left join, and an aggregate of an aggregate."""

from __future__ import annotations

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select c_count, count(*) as custdist
from (
    select c_custkey, count(o_orderkey) as c_count
    from customer left outer join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'
    group by c_custkey
) as c_orders
group by c_count
order by custdist desc, c_count desc
"""


def q13(tables: Tables) -> Pipeline:
    """See the module."""
    special = pc.match_like(field("o_comment"), "%special%requests%")
    return (
        tables.scan("customer", ["c_custkey"])
        .join(
            tables.scan("orders", ["o_orderkey", "o_custkey"], ~special),
            on={"c_custkey": "o_custkey"},
            how="left",
        )
        .groupBy("c_custkey")
        .agg(c_count=("o_orderkey", "count"))
        .groupBy("c_count")
        .agg(custdist=("*", "count"))
        .orderBy("custdist desc", "c_count desc")
    )
