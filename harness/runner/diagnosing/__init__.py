"""`mbr-perf diagnose`."""
