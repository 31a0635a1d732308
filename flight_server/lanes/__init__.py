"""The two lanes, Arrow Flight over gRPC and HTTP: they bring puts and reads to ``transfer``. ``node`` makes them."""
