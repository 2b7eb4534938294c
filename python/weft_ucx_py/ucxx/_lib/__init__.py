"""What UCXX has in Cython: contexts, workers, endpoints, listeners and requests, driven by hand or by a thread."""
