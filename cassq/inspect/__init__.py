"""Read-only views: statistics, history, audit, explanations, metrics."""
