"""Every reader gets Arrow data of any type as it was put, from one producer and from several."""
