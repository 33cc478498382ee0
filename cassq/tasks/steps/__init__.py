"""Steps of tasks: what a task has done is recorded, and never done again.

A task whose first parameter is annotated `Context` has a history: records in the catalog, keyed by
the id of its message. Each step, sleep and wait has a label there: its name, and how often the name
was used before. Only these records are replayed: the function simply runs again, and reaches the
same labels in the same order.

A task that sleeps or waits holds no worker: its call is pushed again, with the same id and the time
when it is due, and then the old message is acked. The record "place" says where the call is now.
It is written before the message is, as an intent, by compare-and-set:

    old message delivered ──> place: intent of move n ──> pushed there ──> old message acked
                                     │ due, or woken by a signal
                                     v
                              place: begun ──> ... ──> intent of move n + 1

Invariants:
1. A step's function is not called if its result is recorded, and no later step is begun before it
   is.
2. A message has the number of its move in a header. Only the message that the place names runs; a
   message of an earlier move is acked once the later message is known to exist.
3. A signal is recorded before the place is read, and the place is changed before signals are read:
   so at least one side sees the other.
"""
