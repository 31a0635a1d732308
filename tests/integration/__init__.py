"""What crosses modules: real server processes, real clients, real Spark."""
