"""What runs in the Spark driver and inside its Python tasks: exchanges, broadcasts, put and get."""
