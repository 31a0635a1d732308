"""The Spark client end to end, each job against Spark's own way in the same session; see ``engines`` for the terms."""
