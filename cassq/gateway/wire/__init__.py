"""The wire: from bytes to requests, and from answers to bytes.

`http` and `listening` are HTTP; `answering` finds the action and the caller of a request, and
writes what the service answers; `json_codec` and `query_codec` are the two encodings, by the tables
in `sqs`; `checking` checks requests against these; `signatures` and `credentials` identify callers;
`counts` counts requests.
"""
