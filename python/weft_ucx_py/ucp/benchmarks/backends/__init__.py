"""The ways in which the benchmark can send and receive: each module has a Server and a Client."""
