"""Logs and golden values of other tools."""
