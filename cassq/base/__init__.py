"""What all other rooms use: clocks, ids, counters, checks of arguments; nothing about queues."""
