"""What measures: ratios within one run, medians of several rounds, and the conditions beside them."""
