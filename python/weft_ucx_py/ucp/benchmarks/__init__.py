"""Benchmarks of ucp: `python -m ucp.benchmarks.send_recv`."""
