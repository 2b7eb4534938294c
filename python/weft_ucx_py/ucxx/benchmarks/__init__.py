"""Helpers of UCXX's benchmarks that other programs use."""
