"""Cases that once found something, made small."""

from __future__ import annotations

from .cases import Case, Step, Table

_BY_DATE: Step = ("ranges", {"order": ["a0 desc"], "n": 3})

EXAMPLES = {
    "dates after 9999 are boundaries of ranges": Case(6000047, Table("a", "a0 date", 60), (), _BY_DATE),
    "instants in a zone that Python does not know are boundaries": Case(
        6000048, Table("a", "a0 timestamp, a1 int", 60, "ipc"), (), _BY_DATE, zone="GMT+2"
    ),
    "the median of the least double, twice, is not zero": Case(
        1,
        Table("a", "a0 double not null", 2),
        (("aggregate", {"by": [], "wanted": [("z", "a0", "median")], "partitions": 1}),),
        numbers=(5e-324,),
    ),
    "the median of decimals is that of the nearest doubles": Case(
        1000045,
        Table("a", "a0 decimal(18,18)", 10, parts=1),
        (("aggregate", {"by": [], "wanted": [("z", "a0", "median")], "partitions": 1}),),
    ),
    "a full join of intervals has an interval of both sides' units": Case(
        2,
        Table("a", "a0 interval hour to minute, a1 int", 30),
        (
            (
                "join",
                {
                    "table": Table("b", "b0 interval second, b1 string", 30),
                    "on": ["a0"],
                    "how": "full",
                    "using": True,
                    "broadcast": False,
                },
            ),
        ),
    ),
    "a union of intervals has an interval of both sides' units": Case(
        3,
        Table("a", "a0 interval hour to minute, a1 int", 30),
        (("union", {"table": Table("b", "b0 interval second, b1 bigint", 30)}),),
    ),
    "a broadcast of a DataFrame keeps its intervals' units": Case(
        4,
        Table("a", "a0 int", 10),
        (
            (
                "join",
                {
                    "table": Table("b", "b0 int, b1 interval day", 10),
                    "on": ["a0"],
                    "how": "left",
                    "using": False,
                    "broadcast": True,
                },
            ),
        ),
    ),
}
