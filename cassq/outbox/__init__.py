"""The outbox: messages written in a transaction of the user's own database, and the relay that
forwards them to their queues."""
