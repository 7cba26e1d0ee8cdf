"""Predicts every setting and recommends one."""
