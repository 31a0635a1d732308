"""Profit by nation and year with parts of one colour: three joins, two of them between large tables."""

from __future__ import annotations

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import REVENUE, Tables

SQL = """select nation, o_year, sum(amount) as sum_profit
from (
    select n_name as nation, extract(year from o_orderdate) as o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
    from part, supplier, lineitem, partsupp, orders, nation
    where s_suppkey = l_suppkey and ps_suppkey = l_suppkey and ps_partkey = l_partkey
        and p_partkey = l_partkey and o_orderkey = l_orderkey and s_nationkey = n_nationkey
        and p_name like '%green%'
) as profit
group by nation, o_year
order by nation, o_year desc
"""


def q09(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey", "n_name"]))
    parts = tables.broadcast(tables.scan("part", ["p_partkey"], pc.match_substring(field("p_name"), "green")))
    suppliers = tables.scan("supplier", ["s_suppkey", "s_nationkey"]).join(
        nation, on={"s_nationkey": "n_nationkey"}
    )
    offers = tables.scan("partsupp", ["ps_partkey", "ps_suppkey", "ps_supplycost"]).join(
        parts, on={"ps_partkey": "p_partkey"}, how="semi"
    )
    amount = REVENUE - field("ps_supplycost") * field("l_quantity")
    return (
        tables.scan(
            "lineitem",
            ["l_orderkey", "l_partkey", "l_suppkey", "l_quantity", "l_extendedprice", "l_discount"],
        )
        .join(parts, on={"l_partkey": "p_partkey"}, how="semi")
        .join(offers, on={"l_partkey": "ps_partkey", "l_suppkey": "ps_suppkey"})
        .join(tables.broadcast(suppliers), on={"l_suppkey": "s_suppkey"})
        .join(tables.scan("orders", ["o_orderkey", "o_orderdate"]), on={"l_orderkey": "o_orderkey"})
        .select(nation="n_name", o_year=pc.year(field("o_orderdate")), amount=amount)
        .groupBy("nation", "o_year")
        .agg(sum_profit=("amount", "sum"))
        .orderBy("nation", "o_year desc")
    )
