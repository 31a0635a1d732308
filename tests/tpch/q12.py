"""Line items that came late by mail and ship, of urgent orders and of others: counts under a condition."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select l_shipmode,
    sum(case when o_orderpriority = '1-URGENT' or o_orderpriority = '2-HIGH' then 1 else 0 end)
        as high_line_count,
    sum(case when o_orderpriority <> '1-URGENT' and o_orderpriority <> '2-HIGH' then 1 else 0 end)
        as low_line_count
from orders, lineitem
where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate
    and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
group by l_shipmode
order by l_shipmode
"""


def q12(tables: Tables) -> Pipeline:
    """See the module."""
    received = field("l_receiptdate")
    late = tables.scan(
        "lineitem",
        ["l_orderkey", "l_shipmode"],
        field("l_shipmode").isin(["MAIL", "SHIP"])
        & (field("l_commitdate") < received)
        & (field("l_shipdate") < field("l_commitdate"))
        & (received >= date(1994, 1, 1))
        & (received < date(1995, 1, 1)),
    )
    urgent = field("o_orderpriority").isin(["1-URGENT", "2-HIGH"])
    return (
        tables.scan("orders", ["o_orderkey", "o_orderpriority"])
        .join(late, on={"o_orderkey": "l_orderkey"})
        .select("l_shipmode", high=pc.if_else(urgent, 1, 0), low=pc.if_else(urgent, 0, 1))
        .groupBy("l_shipmode")
        .agg(high_line_count=("high", "sum"), low_line_count=("low", "sum"))
        .orderBy("l_shipmode")
    )
