"""Load tests: many connections, much data, faults while both run."""
