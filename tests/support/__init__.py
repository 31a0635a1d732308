"""What several kinds of test share: server processes, gates, generators of data."""
