"""What is looked at and changes nothing: statistics, history, audit, explanations, metrics."""
