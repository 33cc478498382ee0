"""What is made of the figures: arithmetic, scores, verdicts and the page."""
