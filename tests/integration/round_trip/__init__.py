"""Whatever Arrow can say comes back as it was put, to every reader, from one producer and from several."""
