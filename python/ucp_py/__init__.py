"""The first generation of UCX-Py on Weft."""
