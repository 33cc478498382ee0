"""The gateway: queues for clients in any language, over HTTP, by the protocol of Amazon SQS.

`wire` reads requests and writes answers: HTTP, the two encodings of SQS, signatures. `actions`
carries requests out on the queues of one URL, through a client for asyncio. `request` and `errors`
hold the types that both use. Only `cli` imports this room; it needs the extra `cassq[gateway]`.
"""
