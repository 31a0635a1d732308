"""The cheapest suppliers of some parts in Europe: a Python function sees the offers for a part together."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from part, supplier, partsupp, nation, region
where p_partkey = ps_partkey and s_suppkey = ps_suppkey and p_size = 15 and p_type like '%BRASS'
    and s_nationkey = n_nationkey and n_regionkey = r_regionkey and r_name = 'EUROPE'
    and ps_supplycost = (
        select min(ps_supplycost)
        from partsupp, supplier, nation, region
        where p_partkey = ps_partkey and s_suppkey = ps_suppkey and s_nationkey = n_nationkey
            and n_regionkey = r_regionkey and r_name = 'EUROPE'
    )
order by s_acctbal desc, n_name, s_name, p_partkey
limit 100
"""


def q02(tables: Tables) -> Pipeline:
    """See the module."""
    nation = tables.broadcast(tables.scan("nation", ["n_nationkey", "n_name", "n_regionkey"]))
    region = tables.broadcast(tables.scan("region", ["r_regionkey"], field("r_name") == "EUROPE"))
    parts = tables.scan(
        "part", ["p_partkey", "p_mfgr"], (field("p_size") == 15) & pc.ends_with(field("p_type"), "BRASS")
    )
    suppliers = (
        tables.scan(
            "supplier",
            ["s_suppkey", "s_nationkey", "s_acctbal", "s_name", "s_address", "s_phone", "s_comment"],
        )
        .join(nation, on={"s_nationkey": "n_nationkey"})
        .join(region, on={"n_regionkey": "r_regionkey"}, how="semi")
    )
    offers = (
        tables.scan("partsupp", ["ps_partkey", "ps_suppkey", "ps_supplycost"])
        .join(tables.broadcast(parts), on={"ps_partkey": "p_partkey"})
        .join(tables.broadcast(suppliers), on={"ps_suppkey": "s_suppkey"})
    )

    def cheapest(of_part: pa.Table) -> pa.Table:
        cost = of_part["ps_supplycost"]
        return of_part.filter(pc.equal(cost, pc.min(cost)))

    return (
        offers.groupBy("p_partkey", numPartitions=2)
        .applyInArrow(cheapest, offers.schema)
        .select("s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone", "s_comment")
        .orderBy("s_acctbal desc", "n_name", "s_name", "p_partkey")
        .limit(100)
    )
