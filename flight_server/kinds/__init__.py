"""What kinds of datasets do by themselves: pull a source, keep a changelog."""
