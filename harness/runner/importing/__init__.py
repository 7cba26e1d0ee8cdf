"""`mbr-perf import`."""
