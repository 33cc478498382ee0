"""Alerts: notify people, once per incident, that a queue needs attention, and when it recovered.

`rules` finds what is wrong, `incidents` decides which targets to notify, `targets` defines them,
`delivery` sends to them, and `watch` runs all of it in one pass.
"""
