"""What is used from Spark."""
