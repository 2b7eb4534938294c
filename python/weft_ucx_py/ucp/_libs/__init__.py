"""The lower level of `ucp`: contexts, workers, endpoints and requests that a program drives by hand (`ucx_api`), arrays, and
small helpers."""
