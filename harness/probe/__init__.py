"""`mbr-perf probe`: what single operations take on the GPU of this machine."""
