"""What earlier runs measured, and its trends."""
