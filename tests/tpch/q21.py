"""Suppliers who alone kept an order of several waiting: both EXISTS become one aggregate of the order."""

from __future__ import annotations

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select s_name, count(*) as numwait
from supplier, lineitem l1, orders, nation
where s_suppkey = l1.l_suppkey and o_orderkey = l1.l_orderkey and o_orderstatus = 'F'
    and l1.l_receiptdate > l1.l_commitdate
    and exists (
        select * from lineitem l2 where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey
    )
    and not exists (
        select * from lineitem l3
        where l3.l_orderkey = l1.l_orderkey and l3.l_suppkey <> l1.l_suppkey
            and l3.l_receiptdate > l3.l_commitdate
    )
    and s_nationkey = n_nationkey and n_name = 'SAUDI ARABIA'
group by s_name
order by numwait desc, s_name
limit 100
"""


def q21(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey"], field("n_name") == "SAUDI ARABIA"))
    supplier, first, late = field("l_suppkey"), field("first"), field("late")
    late_supplier = pc.if_else(field("l_receiptdate") > field("l_commitdate"), supplier, None)
    suppliers = tables.scan("supplier", ["s_suppkey", "s_name", "s_nationkey"]).join(
        nation, on={"s_nationkey": "n_nationkey"}, how="semi"
    )
    return (
        tables.scan("lineitem", ["l_orderkey", "l_suppkey", "l_commitdate", "l_receiptdate"])
        .select("l_orderkey", "l_suppkey", late=late_supplier)
        .groupBy("l_orderkey")
        .agg(
            first=("l_suppkey", "min"),
            last=("l_suppkey", "max"),
            late=("late", "min"),
            last_late=("late", "max"),
            late_items=("late", "count"),
        )
        .filter((first != field("last")) & (late == field("last_late")))
        .join(tables.broadcast(suppliers), on={"late": "s_suppkey"})
        .join(
            tables.scan("orders", ["o_orderkey"], field("o_orderstatus") == "F"),
            on={"l_orderkey": "o_orderkey"},
            how="semi",
        )
        .groupBy("s_name")
        .agg(numwait=("late_items", "sum"))
        .orderBy("numwait desc", "s_name")
        .limit(100)
    )
