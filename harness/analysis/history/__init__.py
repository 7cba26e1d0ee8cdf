"""What earlier runs of a case say."""
