"""UCX-Py's package on Weft: programs written for `ucp` run as they are."""
