"""Plain HTTP: batches of thousands of messages, as lines of JSON or as msgpack."""
