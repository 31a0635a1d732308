"""The two lanes, Arrow Flight over gRPC and HTTP, which bring puts and reads to ``transfer``."""
