"""Measuring: processes of their own, payloads, what disk and machine do, what work costs."""
