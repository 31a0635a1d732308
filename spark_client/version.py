"""The version of the package: the driver's and the executors' must be the same (``executors.shipping``)."""

__version__ = "0.1.0"
