"""The client's streams over real sockets."""
