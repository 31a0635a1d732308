"""Datasets of kind ``source``: the server pulls them itself, from files, S3 or another server, when they are read.

``node`` makes ``creation.Sources``, which loads the libraries of the file formats, for the
first action ``create`` of such a dataset.
"""

from .pulls import Pulling

__all__ = [
    "Pulling",
]
