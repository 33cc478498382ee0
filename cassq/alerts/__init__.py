"""Alerts: tell people, once for each incident, that a queue needs them, and when it is over.

`rules` says what is wrong, `incidents` what is to be told of it to whom, `targets` who wants to
know, `delivery` tells them, `watch` does all of it in one pass.
"""
