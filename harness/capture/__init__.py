"""`mbr-perf capture`: the jobs that a launch script would start, written to files instead of started."""
