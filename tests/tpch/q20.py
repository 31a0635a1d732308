"""Suppliers with more of a part than half a year's demand: a semi join of joins and aggregates."""

from __future__ import annotations

from datetime import date

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select s_name, s_address
from supplier, nation
where s_suppkey in (
        select ps_suppkey
        from partsupp
        where ps_partkey in (select p_partkey from part where p_name like 'forest%')
            and ps_availqty > (
                select 0.5 * sum(l_quantity)
                from lineitem
                where l_partkey = ps_partkey and l_suppkey = ps_suppkey
                    and l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
            )
    )
    and s_nationkey = n_nationkey and n_name = 'CANADA'
order by s_name
"""


def q20(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey"], field("n_name") == "CANADA"))
    shipped = field("l_shipdate")
    parts = tables.broadcast(tables.scan("part", ["p_partkey"], pc.starts_with(field("p_name"), "forest")))
    demand = (
        tables.scan(
            "lineitem",
            ["l_partkey", "l_suppkey", "l_quantity"],
            (shipped >= date(1994, 1, 1)) & (shipped < date(1995, 1, 1)),
        )
        .join(parts, on={"l_partkey": "p_partkey"}, how="semi")
        .groupBy("l_partkey", "l_suppkey")
        .agg(quantity=("l_quantity", "sum"))
    )
    ample = (
        tables.scan("partsupp", ["ps_partkey", "ps_suppkey", "ps_availqty"])
        .join(parts, on={"ps_partkey": "p_partkey"}, how="semi")
        .join(demand, on={"ps_partkey": "l_partkey", "ps_suppkey": "l_suppkey"})
        .filter(field("ps_availqty").cast("double") > field("quantity").cast("double") * 0.5)
    )
    return (
        tables.scan("supplier", ["s_suppkey", "s_name", "s_address", "s_nationkey"])
        .join(nation, on={"s_nationkey": "n_nationkey"}, how="semi")
        .join(tables.broadcast(ample), on={"s_suppkey": "ps_suppkey"}, how="semi")
        .select("s_name", "s_address")
        .orderBy("s_name")
    )
