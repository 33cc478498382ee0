"""Programs in five languages that use a gateway by their SDKs for SQS, each through one scenario.

Each gets the address of a gateway by the environment, as its users do, and ends with status 0 if
everything was as SQS has it.
"""
