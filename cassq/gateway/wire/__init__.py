"""The wire: from bytes to requests, and from answers to bytes.

`connection` and `listening` are HTTP; `answering` finds out what is asked, by whom, and writes what
the service answers; `json_codec` and `query_codec` are the two encodings, over the tables in `sqs`,
which `checking` holds requests to; `signatures` and `credentials` say who asks; `counts` counts.
"""
