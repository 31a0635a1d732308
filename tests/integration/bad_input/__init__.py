"""What a client may get wrong, and what must not follow from it."""
