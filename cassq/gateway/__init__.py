"""The gateway: queues for clients in any language, over HTTP, by the protocol of Amazon SQS.

`wire` reads requests and writes answers: HTTP, the two encodings of SQS, signatures. `actions` does
what they ask, on the queues of one place, as a client for asyncio. Between them stand `request` and
`errors`. Only the command imports this room; it needs the extra `cassq[gateway]`.
"""
