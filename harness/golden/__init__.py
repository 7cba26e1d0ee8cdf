"""Golden values: promote, retire, diff, export."""
