"""How many suppliers offer each kind of part, but those of complaints: an anti join, distinct values."""

from __future__ import annotations

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt
from partsupp, part
where p_partkey = ps_partkey and p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
    and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
    and ps_suppkey not in (
        select s_suppkey from supplier where s_comment like '%Customer%Complaints%'
    )
group by p_brand, p_type, p_size
order by supplier_cnt desc, p_brand, p_type, p_size
"""


def q16(tables: Tables) -> Pipeline:
    """See the module."""
    parts = tables.scan(
        "part",
        ["p_partkey", "p_brand", "p_type", "p_size"],
        (field("p_brand") != "Brand#45")
        & ~pc.starts_with(field("p_type"), "MEDIUM POLISHED")
        & field("p_size").isin([49, 14, 23, 45, 19, 3, 36, 9]),
    )
    complaints = tables.scan(
        "supplier", ["s_suppkey"], pc.match_like(field("s_comment"), "%Customer%Complaints%")
    )
    return (
        tables.scan("partsupp", ["ps_partkey", "ps_suppkey"])
        .join(tables.broadcast(complaints), on={"ps_suppkey": "s_suppkey"}, how="anti")
        .join(parts, on={"ps_partkey": "p_partkey"})
        .groupBy("p_brand", "p_type", "p_size")
        .agg(supplier_cnt=("ps_suppkey", "count_distinct"))
        .orderBy("supplier_cnt desc", "p_brand", "p_type", "p_size")
    )
