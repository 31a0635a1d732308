"""Rich customers who never ordered, by country: an anti join after a filter by their mean."""

from __future__ import annotations

from decimal import Decimal

import pyarrow.compute as pc
from pyarrow.compute import field

from spark_client.pipeline import Pipeline
from tests.tpch.tables import Tables

SQL = """select cntrycode, count(*) as numcust, sum(c_acctbal) as totacctbal
from (
    select substring(c_phone from 1 for 2) as cntrycode, c_acctbal
    from customer
    where substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17')
        and c_acctbal > (
            select avg(c_acctbal)
            from customer
            where c_acctbal > 0.00
                and substring(c_phone from 1 for 2) in ('13', '31', '23', '29', '30', '18', '17')
        )
        and not exists (select * from orders where o_custkey = c_custkey)
) as custsale
group by cntrycode
order by cntrycode
"""


def q22(tables: Tables) -> Pipeline:
    """See the module."""
    codes = ["13", "31", "23", "29", "30", "18", "17"]
    code, balance = pc.utf8_slice_codeunits(field("c_phone"), 0, 2), field("c_acctbal")
    customers = tables.scan("customer", ["c_custkey", "c_phone", "c_acctbal"], code.isin(codes))
    (mean,) = (
        customers.filter(balance > Decimal(0)).agg(mean=("c_acctbal", "avg")).toArrow()["mean"].to_pylist()
    )
    return (
        customers.filter(balance > mean)
        .join(tables.scan("orders", ["o_custkey"]), on={"c_custkey": "o_custkey"}, how="anti")
        .select("c_acctbal", cntrycode=code)
        .groupBy("cntrycode")
        .agg(numcust=("*", "count"), totacctbal=("c_acctbal", "sum"))
        .orderBy("cntrycode")
    )
