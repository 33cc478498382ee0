"""What all rooms stand on: clocks, ids, counters, checks of arguments; nothing about queues."""
