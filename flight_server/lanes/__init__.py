"""The two lanes: Arrow Flight over gRPC, and HTTP."""
