"""One test file for each module of the server."""
