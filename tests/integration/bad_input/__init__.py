"""Requests and puts that are wrong: each is refused, and changes nothing else."""
