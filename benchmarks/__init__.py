"""Benchmarks: time and memory on this machine, against its limit and against the usual implementation."""
