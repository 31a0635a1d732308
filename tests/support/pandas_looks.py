"""What pandas sees of rows, as text: the type of each column, and each value with its type, at any depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

LOOKED = "at long, name string, kind string, value string"
"""What :func:`look` gives."""


def spelled(value: Any) -> str:
    """The value's text, with the types of what it consists of."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"{kind} {value.dtype} [{', '.join(map(spelled, value))}]"
    if isinstance(value, list | tuple):
        return f"{kind} [{', '.join(map(spelled, value))}]"
    if isinstance(value, dict):
        return f"{kind} {{{', '.join(f'{spelled(key)}: {spelled(each)}' for key, each in value.items())}}}"
    if kind == "VariantVal":
        return f"{kind} {value.toJson()}"
    if kind in ("Geometry", "Geography"):
        return f"{kind} {value.getBytes()!r} {value.getSrid()}"
    return f"{kind} {value!r}"


def look(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each value of the frame, in the order of its column ``id``, and one for each column."""
    rows = [(-1, "", type(frame.index).__name__, str(len(frame)))]
    for position, name in enumerate(frame.columns):
        column = frame.iloc[:, position]
        rows.append((-1, str(name), str(column.dtype), str(column.name)))
        rows += [
            (int(at), str(name), str(column.dtype), spelled(value))
            for at, value in zip(frame["id"], column, strict=True)
        ]
    return pd.DataFrame(rows, columns=["at", "name", "kind", "value"])
