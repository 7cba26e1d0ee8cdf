"""Suites of cases against golden values, night by night."""
