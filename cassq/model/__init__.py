"""What a queue, a group, a pipe and a claim are: policies, rows, states; no input and no output."""
