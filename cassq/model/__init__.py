"""The model of queues, groups, pipes and claims: policies, rows, states. No I/O."""
