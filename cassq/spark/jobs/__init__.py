"""Jobs on whole queues, run by Spark: each is a function here, and a command of `cassq spark`."""
