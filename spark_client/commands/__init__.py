"""The command ``flight-shuffle``: one typer application. It needs typer and rich, the extra ``cli``.

It uses the package as any program does, by its face, ``spark_client``.
"""

from .application import run
